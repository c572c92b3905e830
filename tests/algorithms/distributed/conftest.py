"""What lies in this folder can be imported by its name, by tests and by the processes they start."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
