"""`rowcall doctor`: looks at every dependency and says what to do; changes nothing and makes no paid call.

Read `examine` first. Each file looks at one neighbour; a neighbour that is away is one finding, not a failure of the
doctor, and what depends on it is left out.
"""

from consumer.doctor.examine import examine
from consumer.doctor.finding import Finding

__all__ = ["Finding", "examine"]
