//! Why a list or a watch ended, and what follows from it.

use std::error::Error;
use std::io;
use std::time::Duration;

use kube::core::Status;

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// 410: history was compacted, the watch cannot go on from where it was. List again.
    Gone,
    /// 404: the server does not serve the kind.
    NotServed,
    /// 404, and not in the words of an API server about a kind: of a group that it does not have it says no
    /// more, and neither does a proxy that knows no such path.
    NoPath(String),
    /// 403: RBAC lacks a rule; the server's words name verb and resource.
    Forbidden(String),
    /// 401: the token is not good (any more).
    Unauthorized(String),
    /// 400 or 422: the server does not understand the request.
    NotUnderstood(String),
    /// Nothing came for this long.
    Silent(Duration),
    /// Any other answer.
    Refused(String),
    /// No answer: the network, TLS.
    Unreachable(String),
    /// An answer that is no JSON, no list, or no events. What is inside of an object does not matter.
    Undecodable(String),
}

/// Status of an answer that is an error; `None`: there was no answer.
pub(crate) fn code_of(error: &kube::Error) -> Option<u16> {
    if let kube::Error::Api(status) = error { Some(status.code) } else { None }
}

/// Whether no write works now, whatever its object: no answer, the credentials are not good (401), too many requests
/// (429), or the server is not available (503). Any other error may be the object's: a server answers 500 where an
/// admission webhook fails, or where the object would be too large for etcd.
pub(crate) const fn is_outage(code: Option<u16>) -> bool {
    matches!(code, None | Some(401 | 429 | 503))
}

/// Whether the server takes no new objects in a namespace since that is being deleted. Nothing is wrong, and trying
/// again is in vain.
pub(crate) fn is_terminating(error: &kube::Error) -> bool {
    // `NamespaceTerminatingCause` of k8s.io/api/core/v1; servers before 1.15 say it in words alone.
    const CAUSE: &str = "NamespaceTerminating";
    let kube::Error::Api(status) = error else { return false };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 403
        && (causes.into_iter().any(|cause| cause.reason == CAUSE)
            || status.message.ends_with("because it is being terminated"))
}

impl Failure {
    /// Of an error status, in an answer or in a watch.
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
            // With an etcd before 3.4.31 or 3.5.13 a server has no streaming lists, and says so as if it had failed.
            500 if words.contains("required storage feature") => Self::NotUnderstood(words),
            code => Self::Refused(format!("{words} ({code})")),
        }
    }

    /// Of an error of the client.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "an enum of another crate, open to further variants"
    )]
    pub(crate) fn of(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_status(&status),
            kube::Error::SerdeError(error) => Self::Undecodable(error.to_string()),
            kube::Error::Auth(error) => Self::Unauthorized(chain(&error)),
            error => Self::Unreachable(chain(&error)),
        }
    }

    /// Of an answer that began and does not go on.
    pub(crate) fn of_body(error: &io::Error) -> Self {
        Self::Unreachable(chain(error))
    }

    /// Another connection, with the credentials as they are now, may help. One that was silent may be a
    /// connection whose other end is gone.
    pub(crate) const fn calls_for_renewal(&self) -> bool {
        matches!(self, Self::Unauthorized(_) | Self::Unreachable(_) | Self::Silent(_))
    }

    /// Nobody answered.
    pub(crate) const fn is_no_answer(&self) -> bool {
        matches!(self, Self::Silent(_) | Self::Unreachable(_))
    }

    /// There is no connection.
    pub(crate) const fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable(_))
    }

    /// A watch cannot go on from where it was.
    pub(crate) const fn calls_for_list(&self) -> bool {
        matches!(self, Self::Gone | Self::NotServed | Self::NotUnderstood(_) | Self::Undecodable(_))
    }

    /// What is wrong, for people; `what` is the request, as `list pods`.
    pub(crate) fn text(&self, what: &str, server: &str) -> String {
        match self {
            Self::Gone => format!("cannot {what}: too far behind, listing again"),
            Self::NotServed => format!("cannot {what}: {server} does not serve it"),
            Self::Forbidden(words) => {
                format!("cannot {what}: {words}; grant it (deploy/base/rbac.yaml)")
            }
            Self::Unauthorized(words) => format!(
                "cannot {what}: {server} does not accept the credentials ({words}); has the token \
                 expired, or is it another cluster's?"
            ),
            Self::NotUnderstood(words) | Self::Refused(words) | Self::NoPath(words) => {
                format!("cannot {what}: {server} says: {words}")
            }
            Self::Silent(time) => {
                format!("cannot {what}: {server} has been silent for {} s", time.as_secs())
            }
            Self::Unreachable(words) => format!("cannot {what}: {server}: {words}{}", hint(words)),
            Self::Undecodable(words) => format!("cannot {what}: not understood: {words}"),
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

/// An error and its causes, without repetition: libraries put the cause into the text too, and where in the
/// client it happened.
fn chain(error: &dyn Error) -> String {
    let mut texts = Vec::new();
    let mut cause = Some(error);
    while let Some(error) = cause {
        let text = error.to_string();
        let text = text.trim_start_matches("ServiceError: ");
        if !text.starts_with("client error (") {
            texts.push(text.to_owned());
        }
        cause = error.source();
    }
    let mut all = texts.first().cloned().unwrap_or_else(|| error.to_string());
    for text in texts.iter().skip(1).filter(|text| !all.contains(*text)).collect::<Vec<_>>() {
        all = format!("{all}: {text}");
    }
    all
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
