"""The PySpark daemon of a warm Spark. It imports the modules of tasks once, and then forks the workers.

Spark starts it as `spark.python.daemon.module` (decision 0039).
"""

import importlib

from pyspark.daemon import manager

from storage_core.data.steps import STEPS

for _home in {each.home for each in STEPS.values() if "spark" in each.kinds}:
    importlib.import_module(_home)  # workers inherit the imported modules

if __name__ == "__main__":
    manager()
