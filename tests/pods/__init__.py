"""The chart where its pods run. `make pods-test` runs what is here; `make test` doesn't collect it, since it needs
root, a Linux kernel that lets namespaces be made, and programs that take long to build.

`tools/pods.py` makes images and namespaces, `inside.py` is the first process in them, `conftest.py` starts a cluster
there. `trial.py` is the chart as installed, and `load.py` those who write to it meanwhile.
"""
