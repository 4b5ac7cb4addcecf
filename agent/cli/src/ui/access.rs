//! Access to the server: who may ask, and from which page.
//!
//! Other accounts and processes of the machine can connect to the port, and pages of other sites can make the browser
//! send requests to it. Therefore:
//! - each question needs the token, 256 random bits, in the header `Authorization`. The browser adds this header by
//!   itself for no site, so no other page can ask (CSRF), and a cookie would go to every port of 127.0.0.1;
//! - the token is in the fragment of the address, which browsers send to no server (RFC 9110, 4.2.5);
//! - `Host` must be this server's (DNS rebinding), and `Origin` and `Sec-Fetch-Site`, if sent, those of its own page.

use std::fmt::Write as _;

use anyhow::{Result, anyhow};
use axum::http::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use axum::http::{HeaderMap, Uri};
use subtle::ConstantTimeEq;

/// Random bytes of the token.
const TOKEN_BYTES: usize = 32;
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Address of the server in `Host`. `localhost` may be `::1`, too, where another user may listen on the same port.
const ADDRESS: &str = "127.0.0.1";
/// Port that addresses of HTTP leave out (RFC 9110, 4.2.1).
const USUAL_PORT: u16 = 80;

/// Checks of a request.
#[derive(Clone)]
pub(super) struct AccessCheck {
    token: String,
    port: u16,
}

/// Reason to refuse a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessRefusal {
    /// The request was sent to another name.
    Host,
    /// The page of another site made the browser send the request.
    Origin,
    /// The token is missing or wrong.
    Token,
}

impl AccessRefusal {
    /// Returns the reason as text.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Host => "this server answers to 127.0.0.1 only",
            Self::Origin => "this server answers to its own page only",
            Self::Token => "open the address that `netpold ui` printed: its token is missing here",
        }
    }
}

impl AccessCheck {
    /// Makes a new token.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(super) fn new(port: u16) -> Result<Self> {
        let mut bytes = [0; TOKEN_BYTES];
        getrandom::fill(&mut bytes).map_err(|error| anyhow!("no random numbers: {error}"))?;
        let mut token = String::new();
        for byte in bytes {
            write!(token, "{byte:02x}")?;
        }
        Ok(Self { token, port })
    }

    /// Returns the address of the page, with the token.
    pub(super) fn address(&self) -> String {
        format!("http://127.0.0.1:{}/#{}", self.port, self.token)
    }

    /// Checks that a request was sent to this server by its own page, or by no page.
    ///
    /// # Errors
    /// Another site sent it, or it was sent to another name.
    pub(super) fn check_sender(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), AccessRefusal> {
        let mut hosts = headers.get_all(HOST).iter();
        let host = hosts.next().and_then(|host| host.to_str().ok()).ok_or(AccessRefusal::Host)?;
        let is_own = host == format!("{ADDRESS}:{}", self.port)
            || (self.port == USUAL_PORT && host == ADDRESS);
        let is_authority = uri.authority().is_none_or(|authority| authority.as_str() == host);
        if !is_own || !is_authority || hosts.next().is_some() {
            return Err(AccessRefusal::Host);
        }
        let own = format!("http://{host}");
        let is_other = |origin: &axum::http::HeaderValue| origin.as_bytes() != own.as_bytes();
        if headers.get_all(ORIGIN).iter().any(is_other) {
            return Err(AccessRefusal::Origin);
        }
        // `none`: the user has typed the address, or followed a link of another program.
        let is_site =
            |site: &axum::http::HeaderValue| matches!(site.as_bytes(), b"same-origin" | b"none");
        match headers.get_all(FETCH_SITE).iter().all(is_site) {
            true => Ok(()),
            false => Err(AccessRefusal::Origin),
        }
    }

    /// Checks the token; the time of the check does not depend on its content.
    ///
    /// # Errors
    /// The token is missing or wrong.
    pub(super) fn check_token(&self, headers: &HeaderMap) -> Result<(), AccessRefusal> {
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let token = given.next().and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        let token = token.filter(|_| given.next().is_none()).ok_or(AccessRefusal::Token)?;
        match bool::from(token.ct_eq(self.token.as_bytes())) {
            true => Ok(()),
            false => Err(AccessRefusal::Token),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn access() -> AccessCheck {
        AccessCheck { token: "ab".repeat(32), port: 4000 }
    }

    fn sender(uri: &'static str, list: &[(&'static str, &str)]) -> Result<(), AccessRefusal> {
        access().check_sender(&Uri::from_static(uri), &headers(list))
    }

    #[test]
    fn a_rebound_name_is_refused() {
        assert_eq!(sender("/", &[("host", "127.0.0.1:4000")]), Ok(()));
        for host in [
            "localhost:4000",
            "[::1]:4000",
            "evil.example:4000",
            "127.0.0.1",
            "127.0.0.1:4001",
            "127.0.0.1:4000.evil.example",
            "",
        ] {
            assert_eq!(sender("/", &[("host", host)]), Err(AccessRefusal::Host), "{host}");
        }
        assert_eq!(sender("/", &[]), Err(AccessRefusal::Host));
        let two = [("host", "127.0.0.1:4000"), ("host", "evil.example")];
        assert_eq!(sender("/", &two), Err(AccessRefusal::Host));
        let absolute = sender("http://evil.example/", &[("host", "127.0.0.1:4000")]);
        assert_eq!(absolute, Err(AccessRefusal::Host), "the name in the request line counts, too");
    }

    #[test]
    fn port_80_is_left_out() {
        let access = AccessCheck { port: 80, ..access() };
        for host in ["127.0.0.1", "127.0.0.1:80"] {
            let origin = format!("http://{host}");
            let headers = headers(&[("host", host), ("origin", &origin)]);
            assert_eq!(access.check_sender(&Uri::from_static("/"), &headers), Ok(()));
        }
    }

    #[test]
    fn a_page_of_another_site_is_refused() {
        let host = ("host", "127.0.0.1:4000");
        assert_eq!(sender("/", &[host, ("origin", "http://127.0.0.1:4000")]), Ok(()));
        for origin in [
            "http://evil.example",
            "null",
            "http://127.0.0.1:4001",
            "https://127.0.0.1:4000",
            "http://localhost:4000",
        ] {
            assert_eq!(
                sender("/", &[host, ("origin", origin)]),
                Err(AccessRefusal::Origin),
                "{origin}"
            );
        }
        for site in ["cross-site", "same-site"] {
            assert_eq!(sender("/", &[host, ("sec-fetch-site", site)]), Err(AccessRefusal::Origin));
        }
        assert_eq!(sender("/", &[host, ("sec-fetch-site", "same-origin")]), Ok(()));
    }

    #[test]
    fn the_token_is_needed_as_a_whole() {
        let access = access();
        let check = |value: &str| access.check_token(&headers(&[("authorization", value)]));
        assert_eq!(check(&format!("Bearer {}", access.token)), Ok(()));
        for value in ["", "Bearer ", &access.token, &format!("Bearer {}", &access.token[1..])] {
            assert_eq!(check(value), Err(AccessRefusal::Token), "{value}");
        }
        assert_eq!(access.check_token(&HeaderMap::new()), Err(AccessRefusal::Token));
        assert_ne!(AccessCheck::new(1).unwrap().token, AccessCheck::new(1).unwrap().token);
    }
}
