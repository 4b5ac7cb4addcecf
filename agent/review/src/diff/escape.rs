//! Text of objects within Markdown and Mermaid.

use netpold_core::printable::printable;

/// Escapes text for a cell of a Markdown table.
pub(super) fn cell(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if matches!(c, '|' | '`' | '<' | '*' | '_' | '[' | '\\' | '@') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// Escapes text for a Mermaid label.
pub(super) fn label(text: &str) -> String {
    printable(text).replace('#', "#35;").replace('"', "#quot;").replace('<', "#lt;")
}
