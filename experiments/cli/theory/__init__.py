"""`dissensus theory PART`: what theory says, one file a part, loaded only when it is called."""

PARTS: dict[str, str] = {
    "stationary": "the disagreement that stays on a quadratic with gradient noise",
    "exponents": "what gamma = (lr/lr_max)^p does to the disagreement as the learning rate falls",
    "bound": "guarantees with every constant written out, and why one does not apply",
    "certify": "exact worst cases by semidefinite programming, with a check of the dual of our own",
    "ledger": "every bound against random instances: violations, slack, ratio to the certificate",
}
"""Every part and its line of help."""
