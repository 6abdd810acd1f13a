"""The process of which a warm Spark forks its Python workers: what tasks import is imported before, once for all.

Spark starts it as `spark.python.daemon.module` (decision 0167).
"""

from pyspark.daemon import manager

import jobs.spark.tasks  # noqa: F401  # so that workers have it

if __name__ == "__main__":
    manager()
