"""Certificates: exact worst cases over classes of functions and mixing matrices, with a dual that is checked apart.

certificate = certify("dsgd", contraction=1/3, steps=5, lr=1/3)
certificate.value, certificate.certified
worst_case(certificate).measured()       # the functions behind it, run in numpy
"""

from dissensus.theory.certificates.certificate import Certificate, certificate_of, certify
from dissensus.theory.certificates.check import Checked, check
from dissensus.theory.certificates.guarantees import Guarantee, guarantees
from dissensus.theory.certificates.instance import Instance
from dissensus.theory.certificates.sampled import Sampled, sampled
from dissensus.theory.certificates.setting import Setting, setting
from dissensus.theory.certificates.solver import Multipliers
from dissensus.theory.certificates.step_size import BestRate, best_rate
from dissensus.theory.certificates.worst_case import WorstCase, worst_case

__all__ = [
    "BestRate",
    "Certificate",
    "Checked",
    "Guarantee",
    "Instance",
    "Multipliers",
    "Sampled",
    "Setting",
    "WorstCase",
    "best_rate",
    "certificate_of",
    "certify",
    "check",
    "guarantees",
    "sampled",
    "setting",
    "worst_case",
]
