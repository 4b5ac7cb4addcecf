//! Escapes in documents: every string of one is printable.

use std::borrow::Cow;

use anyhow::{Context as _, Result};
use netpold_core::printable::printable;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Makes every string of a JSON document [`printable`], except for keys.
pub fn printable_json(value: &mut serde_json::Value) {
    use serde_json::Value;
    match value {
        Value::String(text) => {
            if let Cow::Owned(shown) = printable(text) {
                *text = shown;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(printable_json),
        Value::Object(fields) => fields.values_mut().for_each(printable_json),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Makes every string of a document [`printable`], except for keys.
///
/// # Errors
/// The document cannot be written as JSON, or the result does not fit `U`.
pub fn printable_document<T, U>(document: &T) -> Result<U>
where
    T: Serialize + ?Sized,
    U: DeserializeOwned,
{
    let mut value = serde_json::to_value(document).context("cannot convert to JSON")?;
    printable_json(&mut value);
    serde_json::from_value(value).context("unexpected form of the JSON document")
}
