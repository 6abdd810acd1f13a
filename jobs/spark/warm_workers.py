"""The PySpark daemon of a warm Spark: it imports what tasks need, once, and forks the workers.

Spark starts it as `spark.python.daemon.module` (decision 0167).
"""

from pyspark.daemon import manager

import jobs.spark.tasks  # noqa: F401  # so that workers have it

if __name__ == "__main__":
    manager()
