//! `netpold init`: policies to begin with, each with assertions for `netpold test`.

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use netpold_client::arguments::check_namespace;
use netpold_client::output::print;
use netpold_kube::convert::DEFAULT_NAMESPACE;

/// Namespace of the cluster's DNS.
const DNS_NAMESPACE: &str = "kube-system";
/// Effect of a preset that isolates the ingress of the cluster's DNS.
const CLOSES_DNS: &str = "the cluster's DNS is in kube-system: this preset, enforced there, denies it to every other pod";

/// Flags of `netpold init`.
#[derive(Debug, Args)]
pub struct InitArgs {
    /// Policies to print
    #[arg(long, value_name = "NAME", env = "NETPOLD_PRESET")]
    pub preset: Preset,
    /// Namespace of the policies' pods, for default-deny, sandbox and tenant
    #[arg(
        short, long, value_name = "NAME", env = "NETPOLD_NAMESPACE", default_value = DEFAULT_NAMESPACE
    )]
    pub namespace: String,
    /// Print policies that are enforced, instead of policies in audit mode
    #[arg(long, env = "NETPOLD_ENFORCE", conflicts_with = "assertions")]
    pub enforce: bool,
    /// Print the assertions of the preset, for `netpold test`
    #[arg(long, env = "NETPOLD_ASSERTIONS")]
    pub assertions: bool,
}

/// Policies for a purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// NetworkPolicies: pods of a namespace reach the cluster's DNS and nothing else
    DefaultDeny,
    /// NetworkPolicy: pods of a namespace reach the internet, but of private networks only the cluster's DNS
    Sandbox,
    /// ClusterNetworkPolicy: no pods of other namespaces reach the pods of a namespace, and vice versa
    Tenant,
    /// ClusterNetworkPolicies: every pod reaches the cluster's DNS, whatever NetworkPolicies deny
    Dns,
    /// ClusterNetworkPolicy: no pod reaches known addresses of clouds' metadata services, labelled namespaces excepted
    Metadata,
}

impl Preset {
    /// Returns a warning if the preset's policies, enforced in a namespace, close the cluster's DNS.
    #[must_use]
    pub fn warning(self, namespace: &str) -> Option<&'static str> {
        let closes = matches!(self, Self::DefaultDeny | Self::Sandbox | Self::Tenant);
        (closes && namespace == DNS_NAMESPACE).then_some(CLOSES_DNS)
    }

    /// Returns the preset's policies in audit mode, and its assertions; both name the namespace `NAMESPACE`.
    fn texts(self) -> (&'static str, &'static str) {
        macro_rules! texts {
            ($name:literal) => {
                (
                    include_str!(concat!("init/", $name, ".yaml")),
                    include_str!(concat!("init/", $name, "-assertions.yaml")),
                )
            };
        }
        match self {
            Self::DefaultDeny => texts!("default-deny"),
            Self::Sandbox => texts!("sandbox"),
            Self::Tenant => texts!("tenant"),
            Self::Dns => texts!("dns"),
            Self::Metadata => texts!("metadata"),
        }
    }
}

/// Prints a preset to standard output.
///
/// # Errors
/// The namespace is no name of a namespace, the enforced policies would close the cluster's DNS, or standard output is
/// closed.
pub fn run(args: &InitArgs) -> Result<()> {
    let text = match args.assertions {
        true => {
            check_namespace(&args.namespace)?;
            args.preset.texts().1.replace("NAMESPACE", &args.namespace)
        }
        false => {
            let text = policies(args.preset, &args.namespace, args.enforce)?;
            if let Some(warning) = args.preset.warning(&args.namespace) {
                anstream::eprintln!("netpold: {warning}");
            }
            text
        }
    };
    print(&text)?;
    Ok(())
}

/// Returns the policies of a preset for a namespace: enforced, or in audit mode.
///
/// # Errors
/// The namespace is no name of a namespace, or the enforced policies would close the cluster's DNS.
pub fn policies(preset: Preset, namespace: &str, enforce: bool) -> Result<String> {
    check_namespace(namespace)?;
    if let Some(warning) = preset.warning(namespace).filter(|_| enforce) {
        bail!("{warning}; choose another namespace");
    }
    let (policies, _) = preset.texts();
    let text = if enforce { enforced(policies) } else { policies.to_owned() };
    Ok(text.replace("NAMESPACE", namespace))
}

/// Returns policies without the annotation of the audit mode.
fn enforced(policies: &str) -> String {
    let kept = |line: &&str| !line.contains("netpold.io/enforcement") && *line != "  annotations:";
    policies.lines().filter(kept).flat_map(|line| [line, "\n"]).collect()
}
