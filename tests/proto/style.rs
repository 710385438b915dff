//! The rules that `buf lint` knows as STANDARD and COMMENTS, without buf.

use super::schema::files;

fn camel(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_uppercase()) && name.chars().all(|c| c.is_ascii_alphanumeric())
}

fn snake(name: &str) -> bool {
    let plain = |part: &str| part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.split('_').all(|part| !part.is_empty() && plain(part))
}

/// `FeedState` as the values of the enum begin.
fn screaming(name: &str) -> String {
    let mut out = String::new();
    for (i, letter) in name.chars().enumerate() {
        if i > 0 && letter.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(letter.to_ascii_uppercase());
    }
    out
}

#[test]
fn files_lie_where_their_package_says() {
    for file in files() {
        let name = file.descriptor.name();
        assert!(
            name.starts_with("kvtap/v1/") && snake(name.trim_start_matches("kvtap/v1/").trim_end_matches(".proto"))
        );
        assert_eq!(file.descriptor.syntax(), "proto3", "{name}");
    }
}

#[test]
fn messages_and_fields_are_named_in_the_usual_way_and_each_is_explained() {
    for file in files() {
        for (i, message) in file.descriptor.message_type.iter().enumerate() {
            let name = message.name();
            assert!(camel(name), "{name}");
            assert!(file.comment(&[4, i as i32]).len() > 10, "{name} is not explained");
            for field in file.fields(i, message) {
                let full = format!("{name}.{}", field.descriptor.name());
                assert!(snake(field.descriptor.name()), "{full}");
                assert!(field.comment.len() > 8, "{full} is not explained");
                let list = field.kind.starts_with("repeated bytes") || field.kind.starts_with("repeated string");
                assert!(!list || field.descriptor.name().ends_with('s'), "{full}: a list is named in the plural");
            }
        }
    }
}

#[test]
fn enums_begin_with_a_zero_that_says_nothing_and_their_values_carry_their_name() {
    for file in files() {
        for (i, kind) in file.descriptor.enum_type.iter().enumerate() {
            let prefix = screaming(kind.name());
            assert!(camel(kind.name()) && file.comment(&[5, i as i32]).len() > 10, "{}", kind.name());
            assert_eq!((kind.value[0].name(), kind.value[0].number()), (format!("{prefix}_UNSPECIFIED").as_str(), 0));
            for (j, value) in kind.value.iter().enumerate() {
                assert!(value.name().starts_with(&format!("{prefix}_")), "{}", value.name());
                assert!(file.comment(&[5, i as i32, 2, j as i32]).len() > 10, "{} is not explained", value.name());
            }
        }
    }
}

#[test]
fn each_call_has_a_request_and_a_response_of_its_own_name() {
    let mut calls = 0;
    for file in files() {
        for (i, service) in file.descriptor.service.iter().enumerate() {
            assert!(camel(service.name()) && service.name().ends_with("Service"), "{}", service.name());
            assert!(file.comment(&[6, i as i32]).len() > 10, "{} is not explained", service.name());
            for (j, call) in service.method.iter().enumerate() {
                let name = call.name();
                assert!(camel(name) && file.comment(&[6, i as i32, 2, j as i32]).len() > 10, "{name}");
                assert_eq!(call.input_type(), format!(".kvtap.v1.{name}Request"));
                assert_eq!(call.output_type(), format!(".kvtap.v1.{name}Response"));
                calls += 1;
            }
        }
    }
    assert!(calls >= 4, "{calls}");
}
