//! Files of the page. They hold no secret: who loads them without a token sees an empty page.

/// A file of the page.
pub(super) struct PageFile {
    /// Path in the address.
    pub(super) path: &'static str,
    /// Media type.
    pub(super) media: &'static str,
    /// Content.
    pub(super) text: &'static str,
}

macro_rules! file {
    ($path:literal, $name:literal, $media:literal) => {
        PageFile { path: $path, media: $media, text: include_str!(concat!("page/", $name)) }
    };
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! script {
    ($name:literal) => {
        PageFile {
            path: concat!("/", $name),
            media: SCRIPT,
            text: include_str!(concat!("page/", $name)),
        }
    };
}

/// All files.
pub(super) const FILES: [PageFile; 12] = [
    file!("/", "index.html", "text/html; charset=utf-8"),
    file!("/page.css", "page.css", "text/css; charset=utf-8"),
    file!("/icon.svg", "icon.svg", "image/svg+xml"),
    script!("main.js"),
    script!("ask.js"),
    script!("build.js"),
    script!("map_tab.js"),
    script!("layout.js"),
    script!("canvas.js"),
    script!("live_tab.js"),
    script!("what_if_tab.js"),
    script!("in_force_tab.js"),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Most bytes of script before compression; compressed they are about a quarter.
    const SCRIPT_MAX: usize = 150_000;

    #[test]
    fn scripts_are_small_and_never_parse_text_as_markup() {
        let scripts = || FILES.iter().filter(|file| file.media == SCRIPT);
        assert!(scripts().map(|file| file.text.len()).sum::<usize>() <= SCRIPT_MAX);
        for file in scripts() {
            for sink in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "DOMParser",
                "createContextualFragment",
                "setAttribute(\"on",
                "srcdoc",
            ] {
                assert!(!file.text.contains(sink), "{}: {sink}", file.path);
            }
        }
        let page = FILES[0].text;
        assert!(!page.contains(" on") || !page.contains("onclick"), "inline handlers");
        assert!(!page.contains("style=") && !page.contains("<style"), "inline styles");
        for file in &FILES {
            let text = file.text.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("http://") && !text.contains("https://"), "{}", file.path);
        }
    }
}
