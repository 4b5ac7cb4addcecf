//! The rights of `deploy/base/controller.yaml` are exact: enough to run with, and nothing that is not used.
