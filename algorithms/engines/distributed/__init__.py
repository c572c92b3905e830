"""Workers in many processes: messages, buckets, the front door, blocks of workers, failures, checkpoints."""
