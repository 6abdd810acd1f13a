"""The PySpark daemon of a warm Spark. The daemon first imports the modules of tasks, and then forks the workers.

Spark starts this daemon as `spark.python.daemon.module` (decision 0039).
"""

import importlib

from pyspark.daemon import manager

from storage_core.data.steps import STEPS

for _home in {each.home for each in STEPS.values() if "spark" in each.kinds}:
    importlib.import_module(_home)  # workers inherit these modules

if __name__ == "__main__":
    manager()
