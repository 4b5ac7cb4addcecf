//! Reasons for which a list or a watch ended, and their consequences.

use std::error::Error;
use std::io;
use std::time::Duration;

use kube::core::Status;
use netpold_core::error_chain;

/// Reason for which a request failed.
#[derive(Debug)]
pub enum Failure {
    /// 410: history was compacted, so the watch cannot continue from its version and a new list is needed.
    Gone,
    /// 404: the server does not serve the kind.
    NotServed,
    /// 404 without the `NotFound` reason of an API server: the answer for an unknown API group, or of a proxy without
    /// such a path.
    NoPath(String),
    /// 403: RBAC lacks a rule; the server's message names verb and resource.
    Forbidden(String),
    /// 401: the token is invalid or expired.
    Unauthorized(String),
    /// 400 or 422: the server does not support the request.
    NotUnderstood(String),
    /// No data arrived for this long.
    Silent(Duration),
    /// Any other answer.
    Refused(String),
    /// No answer: a network or TLS error.
    Unreachable(String),
    /// The answer is not JSON, or not a list or events. The content of objects does not matter here.
    Undecodable(String),
}

/// Returns the status of an error answer; `None` without an answer.
#[must_use]
pub fn code_of(error: &kube::Error) -> Option<u16> {
    if let kube::Error::Api(status) = error { Some(status.code) } else { None }
}

/// Returns whether no write works now, regardless of its object: no answer, invalid credentials (401), too many
/// requests (429), or an unavailable server (503). Other errors may be specific to the object: a server answers 500 if
/// an admission webhook fails, or if the object would be too large for etcd.
#[must_use]
pub const fn is_outage(code: Option<u16>) -> bool {
    matches!(code, None | Some(401 | 429 | 503))
}

/// Returns whether the server accepts no new objects in a namespace because the namespace is being deleted. This is not
/// a fault, and a repetition is useless.
#[must_use]
pub fn is_terminating(error: &kube::Error) -> bool {
    // `NamespaceTerminatingCause` of k8s.io/api/core/v1; servers before 1.15 have it in the message alone.
    const CAUSE: &str = "NamespaceTerminating";
    let kube::Error::Api(status) = error else { return false };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 403
        && (causes.into_iter().any(|cause| cause.reason == CAUSE)
            || status.message.ends_with("because it is being terminated"))
}

impl Failure {
    /// Converts an error status of an answer or of a watch.
    pub(crate) fn of_status(status: &Status) -> Self {
        let words = match status.message.as_str() {
            "" => format!("HTTP status {}", status.code),
            message => message.to_owned(),
        };
        match status.code {
            410 => Self::Gone,
            404 if status.reason == "NotFound" => Self::NotServed,
            404 => Self::NoPath(format!("{words} (404)")),
            403 => Self::Forbidden(words),
            401 => Self::Unauthorized(words),
            400 | 422 => Self::NotUnderstood(words),
            // With etcd before 3.4.31 or 3.5.13 a server has no streaming lists, and answers 500 to them.
            500 if words.contains("required storage feature") => Self::NotUnderstood(words),
            code => Self::Refused(format!("{words} ({code})")),
        }
    }

    /// Converts an error of the client.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "an enum of another crate, open to further variants"
    )]
    #[must_use]
    pub fn from_error(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_status(&status),
            kube::Error::SerdeError(error) => Self::Undecodable(error.to_string()),
            kube::Error::Auth(error) => Self::Unauthorized(chain(&error)),
            error => Self::Unreachable(chain(&error)),
        }
    }

    /// Converts an error of an answer that broke off.
    pub(crate) fn of_body(error: &io::Error) -> Self {
        Self::Unreachable(chain(error))
    }

    /// Returns whether a new connection with the current credentials may help. After a silence the connection's other
    /// end may be gone.
    #[must_use]
    pub const fn calls_for_renewal(&self) -> bool {
        matches!(self, Self::Unauthorized(_) | Self::Unreachable(_) | Self::Silent(_))
    }

    /// Returns whether the server did not answer.
    pub(crate) const fn is_no_answer(&self) -> bool {
        matches!(self, Self::Silent(_) | Self::Unreachable(_))
    }

    /// Returns whether there is no connection.
    pub(crate) const fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable(_))
    }

    /// Returns whether a watch cannot continue from its version.
    pub(crate) const fn calls_for_list(&self) -> bool {
        matches!(self, Self::Gone | Self::NotServed | Self::NotUnderstood(_) | Self::Undecodable(_))
    }

    /// Describes the failure for messages; `what` is the request, such as `list pods`.
    #[must_use]
    pub fn text(&self, what: &str, server: &str) -> String {
        match self {
            Self::Gone => format!("cannot {what}: watch too far behind, listing again"),
            Self::NotServed => format!("cannot {what}: {server} does not serve it"),
            Self::Forbidden(words) => {
                format!("cannot {what}: {words}; grant it (deploy/base/rbac.yaml)")
            }
            Self::Unauthorized(words) => format!(
                "cannot {what}: {server} does not accept the credentials ({words}); has the token \
                 expired, or is it another cluster's?"
            ),
            Self::NotUnderstood(words) | Self::Refused(words) | Self::NoPath(words) => {
                format!("cannot {what}: {server} answered: {words}")
            }
            Self::Silent(time) => {
                format!("cannot {what}: {server} has been silent for {} s", time.as_secs())
            }
            Self::Unreachable(words) => format!("cannot {what}: {server}: {words}{}", hint(words)),
            Self::Undecodable(words) => format!("cannot {what}: invalid answer: {words}"),
        }
    }
}

fn hint(words: &str) -> &'static str {
    if words.contains("certificate") {
        "; is the kubeconfig's (or the mounted) certificate authority this cluster's?"
    } else {
        ""
    }
}

/// Joins an error and its causes, without the client's layers, which libraries name in the text.
fn chain(error: &(dyn Error + 'static)) -> String {
    let texts = error_chain::chain(error).filter_map(|error| {
        let text = error.to_string();
        let text = text.trim_start_matches("ServiceError: ");
        (!text.starts_with("client error (")).then(|| text.to_owned())
    });
    error_chain::joined(texts).unwrap_or_else(|| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: u16, reason: &str) -> Failure {
        let json = serde_json::json!({ "code": code, "reason": reason, "message": "words" });
        Failure::of_status(&serde_json::from_value(json).unwrap())
    }

    #[test]
    fn only_the_servers_own_404_means_that_a_kind_is_not_served() {
        assert!(matches!(of(404, "NotFound"), Failure::NotServed));
        assert!(matches!(of(404, "Failed to parse error data"), Failure::NoPath(_)));
        assert!(matches!(of(410, "Expired"), Failure::Gone));
        assert!(matches!(of(503, ""), Failure::Refused(_)));
    }

    #[test]
    fn a_namespace_that_is_being_deleted_is_no_lack_of_permission() {
        let error = |message: &str, cause: &str| {
            let details = serde_json::json!({ "causes": [{ "reason": cause }] });
            let json = serde_json::json!({
                "code": 403, "reason": "Forbidden", "message": message, "details": details,
            });
            kube::Error::Api(Box::new(serde_json::from_value(json).unwrap()))
        };
        assert!(is_terminating(&error("words", "NamespaceTerminating")));
        let words = "unable to create new content in namespace x because it is being terminated";
        assert!(is_terminating(&error(words, "")));
        assert!(!is_terminating(&error("exceeded quota", "")));
        assert!(!is_terminating(&kube::Error::LinesCodecMaxLineLengthExceeded));
    }

    #[test]
    fn what_rbac_lacks_is_named() {
        let text = of(403, "Forbidden").text("list pods", "https://s");
        assert_eq!(text, "cannot list pods: words; grant it (deploy/base/rbac.yaml)");
    }
}
