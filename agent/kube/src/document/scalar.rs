//! The type of a scalar, resolved like go-yaml v2, which `kubectl` uses.

use std::borrow::Cow;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};

use super::Value;

/// Prefix of the tags that are written `!!`.
const CORE: &str = "tag:yaml.org,2002:";

/// Same decoder as Go's `base64.StdEncoding`: trailing bits may have any value.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// A scalar's value before its conversion to JSON.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scalar<'t> {
    Null,
    Bool(bool),
    Int(i64),
    /// A whole number beyond [`i64::MAX`].
    Large(u64),
    Float(f64),
    Text(Cow<'t, str>),
}

impl<'t> Scalar<'t> {
    /// Resolves a scalar: by its tag, else by its text if it is plain, else as text.
    ///
    /// # Errors
    /// The text is not of the tag's type.
    pub(super) fn resolve(
        text: Cow<'t, str>,
        plain: bool,
        tag: Option<&str>,
    ) -> Result<Self, String> {
        let Some(tag) = tag else {
            return Ok(if plain { resolve(text) } else { Self::Text(text) });
        };
        let found = match tag.strip_prefix(CORE) {
            Some("binary") => return binary(&text),
            Some("bool" | "int" | "float" | "null") => resolve(text.clone()),
            // Other tags are ignored; the format of timestamps is not checked.
            _ => return Ok(Self::Text(text)),
        };
        let wanted = &tag[CORE.len()..];
        match (wanted, found) {
            ("bool", found @ Self::Bool(_))
            | ("int", found @ (Self::Int(_) | Self::Large(_)))
            | ("float", found @ Self::Float(_))
            | ("null", found @ Self::Null) => Ok(found),
            ("float", Self::Int(number)) => Ok(Self::Float(number as f64)),
            _ => {
                let text = netpold_core::printable::cut(text.into_owned(), 100);
                Err(format!("`{text}` is tagged !!{wanted} but is not one"))
            }
        }
    }

    /// Converts to a JSON value.
    ///
    /// # Errors
    /// JSON has no such number.
    pub(super) fn into_value(self) -> Result<Value, String> {
        Ok(match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(value),
            Self::Int(number) => Value::Int(number),
            Self::Large(number) => Value::Float(number as f64),
            Self::Float(number) if !number.is_finite() => {
                return Err(format!("{number} is not a JSON number; put it in quotes"));
            }
            // Go writes 1e3 and 80.0 as 1000 and 80.
            Self::Float(number) if number.fract() == 0.0 && number.abs() < 9e18 => {
                Value::Int(number as i64)
            }
            Self::Float(number) => Value::Float(number),
            Self::Text(text) => Value::Text(text.into_owned()),
        })
    }

    /// Converts to a JSON key, which is text.
    ///
    /// # Errors
    /// The scalar is null, or a number too large for a key.
    pub(super) fn into_key(self) -> Result<String, String> {
        Ok(match self {
            Self::Null => return Err("a key must not be empty; put it in quotes".into()),
            Self::Bool(value) => value.to_string(),
            Self::Int(number) => number.to_string(),
            Self::Large(number) => {
                return Err(format!("{number} is too large for a key; put it in quotes"));
            }
            Self::Float(number) => float_key(number as f32),
            Self::Text(text) => text.into_owned(),
        })
    }
}

/// Decodes `!!binary`: base64. Bytes that are not UTF-8 are replaced, as in JSON.
fn binary(text: &str) -> Result<Scalar<'static>, String> {
    let packed: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    let bytes = BASE64.decode(packed).map_err(|_| "!!binary is not base64")?;
    Ok(Scalar::Text(String::from_utf8_lossy(&bytes).into_owned().into()))
}

/// Formats like Go's `FormatFloat(number, 'g', -1, 32)`, with YAML's names for NaN and infinity.
fn float_key(number: f32) -> String {
    if number.is_nan() {
        return ".nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { ".inf" } else { "-.inf" }.into();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..6).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => number.to_string(),
    }
}

/// Resolves a plain scalar: YAML 1.1's words and numbers, as far as go-yaml supports them.
fn resolve(text: Cow<'_, str>) -> Scalar<'_> {
    match text.as_ref() {
        "" | "~" | "null" | "Null" | "NULL" => Scalar::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Scalar::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Scalar::Bool(false)
        }
        ".nan" | ".NaN" | ".NAN" => Scalar::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Scalar::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => Scalar::Float(f64::NEG_INFINITY),
        _ => match number(&text) {
            Some(number) => number,
            None => Scalar::Text(text),
        },
    }
}

fn number(text: &str) -> Option<Scalar<'static>> {
    match text.as_bytes().first()? {
        b'0'..=b'9' | b'+' | b'-' => {
            let plain = text.replace('_', "");
            whole(&plain).or_else(|| float(&plain))
        }
        b'.' => float(text),
        _ => None,
    }
}

/// Parses a whole number like Go's `ParseInt(text, 0, 64)`, then `ParseUint`.
fn whole(text: &str) -> Option<Scalar<'static>> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefix = digits.get(..2).map(str::to_ascii_lowercase);
    let (radix, digits) = match prefix.as_deref() {
        Some("0x") => (16, &digits[2..]),
        Some("0o") => (8, &digits[2..]),
        Some("0b") => (2, &digits[2..]),
        Some(_) if digits.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let number = u64::from_str_radix(digits, radix).ok()?;
    match i64::try_from(number) {
        Ok(number) => Some(Scalar::Int(if negative { -number } else { number })),
        Err(_) if negative => (number == 1 << 63).then_some(Scalar::Int(i64::MIN)),
        Err(_) => (!text.starts_with('+')).then_some(Scalar::Large(number)),
    }
}

/// Parses a decimal number with a point, an exponent, or leading zeros; `None` if it is too large.
fn float(text: &str) -> Option<Scalar<'static>> {
    let decimal = text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
    let number: f64 = text.parse().ok().filter(|_| decimal)?;
    number.is_finite().then_some(Scalar::Float(number))
}
