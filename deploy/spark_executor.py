"""Start an executor of Spark in a pod that a driver has made: the command of `deploy/kubernetes/…/executor.yaml`.

Spark's own images do this in a shell script, which looks for a distribution of Spark; here Spark is the package
`pyspark` of this environment. What to do stands in the variables that Spark gives to the pods of its executors.

    python spark_executor.py executor      becomes the JVM of the executor
"""

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
OPTION = "SPARK_JAVA_OPT_"
ARGUMENTS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}


def make_command(environ: Mapping[str, str]) -> list[str]:
    """Return the command of the executor.

    Raises:
        KeyError: A variable that Spark sets is missing: this is no pod of an executor.
    """
    package = find_spec("pyspark")
    jars = Path(package.submodule_search_locations[0], "jars") if package and package.submodule_search_locations else ""
    java = Path(environ["JAVA_HOME"], "bin", "java") if environ.get("JAVA_HOME") else "java"
    options = {int(name.removeprefix(OPTION)): value for name, value in environ.items() if name.startswith(OPTION)}
    classes = [environ.get("SPARK_CONF_DIR"), f"{jars}/*", environ.get("SPARK_CLASSPATH")]
    memory = environ["SPARK_EXECUTOR_MEMORY"]
    command = [str(java), *(options[number] for number in sorted(options)), f"-Xms{memory}", f"-Xmx{memory}"]
    command += ["-cp", ":".join(each for each in classes if each), BACKEND]
    return command + [word for option, name in ARGUMENTS.items() for word in (option, environ[name])]


def main() -> None:
    """Become the executor."""
    if sys.argv[1:] != ["executor"]:
        sys.exit("spark-executor: started by Spark alone, with the one argument `executor`")
    try:
        command = make_command(os.environ)
    except KeyError as error:
        sys.exit(f"spark-executor: {error.args[0]} is not set: Spark gives it to the pods of its executors")
    os.execvp(command[0], command)  # the JVM takes this process's place, and its signals  # nosec B606


if __name__ == "__main__":
    main()
