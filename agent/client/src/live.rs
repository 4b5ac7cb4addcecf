//! Access of commands to a live cluster: its objects, and its agents' answers.
//!
//! The API server runs the same command in each agent's pod (`exec`): RBAC decides who may ask, and no port is
//! opened. A report names each agent that does not answer, and the others' answers are shown.

mod agents;
mod args;
mod exec;
mod inside;
mod names;
mod node_error;
mod objects;
mod pages;
mod pod_node;
mod read_pod;
mod runtime;

pub use agents::{AgentAnswers, Agents, request_all};
pub use args::{ClusterArgs, PLUGIN, is_called_as, is_plugin};
pub use inside::{CommandFailure, ContainerAccess};
pub use names::{ListedKind, NameLister};
pub use node_error::{NodeError, report};
pub use objects::{all_objects, namespace, objects};
pub use pages::pages;
pub use pod_node::node_of;
pub use runtime::{block_on, block_on_and_leave, standard_input_ends};

/// Exit status of commands that ask agents: every agent answered.
pub const ALL_ANSWERED: u8 = 0;
/// Exit status of commands that ask agents: some agent did not answer.
pub const SOME_ANSWERED: u8 = 1;
