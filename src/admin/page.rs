//! The status page: one HTML document without anything from outside, that asks `/status` again and again.
//!
//! Names and reasons come from outside. The page sets them as text only, and the policy below lets a browser run no
//! script and fetch nothing but what this file names, should the page ever fail to.

use axum::http::HeaderName;
use axum::http::header;
use axum::response::{Html, IntoResponse};

const PAGE: &str = include_str!("page.html");

/// The document's one script and one style by their SHA-256; nothing else may run or be fetched, but for `/status`.
const POLICY: &str = "default-src 'none'; \
    style-src 'sha256-rg5ce8+7XKHmEwHN1KCTZwqJHQqbUitLiaSTU/t4zQA='; \
    script-src 'sha256-bfI2oHV3moXmciUWOz1Gh4W9isod5mzwFgE5lOvDeSA='; \
    img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

const HEADERS: [(HeaderName, &str); 4] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
];

/// `GET /`.
pub(super) async fn page() -> impl IntoResponse {
    (HEADERS, Html(PAGE))
}
