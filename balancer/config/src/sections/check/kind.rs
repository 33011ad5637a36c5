//! The keys of each type of check.

use std::path::PathBuf;

use toml::de::DeValue;

use super::text;
use crate::model::Forward;
use crate::model::check::{
    CheckKind, DnsCheck, DnsRecord, ExecCheck, HttpCheck, Rcode, Statuses, TlsCheck, UdpCheck,
};
use crate::reader::located::Located;
use crate::reader::section::Section;
use crate::reader::value::{Read, boolean, choice, command, is_absolute, text};

const EXAMPLE: &str = "type = \"tcp\", or \"http\", \"https\", \"udp\", \"dns\" or \"exec\"";

#[derive(Clone, Copy, PartialEq)]
enum Type {
    Tcp,
    Http,
    Https,
    Udp,
    Dns,
    Exec,
}

const TYPES: [(&str, Type); 6] = [
    ("tcp", Type::Tcp),
    ("http", Type::Http),
    ("https", Type::Https),
    ("udp", Type::Udp),
    ("dns", Type::Dns),
    ("exec", Type::Exec),
];

/// Keys that not every type has.
const KEYS: [(&str, &[&str]); 11] = [
    ("path", &["http", "https"]),
    ("host", &["http", "https"]),
    ("expect", &["http", "https", "udp"]),
    ("tls_verify", &["https"]),
    ("ca_file", &["https"]),
    ("sni", &["https"]),
    ("send", &["udp"]),
    ("query", &["dns"]),
    ("record", &["dns"]),
    ("rcode", &["dns"]),
    ("command", &["exec"]),
];

/// What is asked; `None` when something is wrong with it.
pub(super) fn read(section: &mut Section, forward: Forward) -> Option<CheckKind> {
    let kind = section.required("type", EXAMPLE, |v| choice(v, &TYPES));
    others(section, kind.as_deref().copied());
    let kind = kind?;
    Some(match *kind {
        Type::Tcp => CheckKind::Tcp,
        Type::Http => CheckKind::Http(http(section)),
        Type::Https => CheckKind::Https(http(section), tls(section)),
        Type::Udp => CheckKind::Udp(udp(section)?),
        Type::Dns => CheckKind::Dns(dns(section)?),
        Type::Exec => {
            if forward.is_dsr() {
                let message = format!(
                    "type = \"exec\" in {} cannot check forward = \"{forward}\": a program's \
                     packets do not take that path: write another type, or forward = \"nat\"",
                    section.place
                );
                section.report.error(kind.span(), message);
            }
            CheckKind::Exec(ExecCheck {
                command: section.required("command", COMMAND, |v| command(v, COMMAND))?,
            })
        }
    })
}

/// Reports keys of other types.
fn others(section: &mut Section, kind: Option<Type>) {
    let word = TYPES.iter().find(|(_, t)| Some(*t) == kind).map(|(word, _)| *word);
    for (key, types) in KEYS {
        let Some(word) = word else {
            // Without a type nobody can say: it is known, and that is all.
            section.optional(key, |_| Ok(()));
            continue;
        };
        if types.contains(&word) {
            continue;
        }
        let quoted: Vec<String> = types.iter().map(|kind| format!("{kind:?}")).collect();
        let article = if word == "exec" || word.starts_with("http") { "an" } else { "a" };
        let complaint = format!(
            "has no effect on {article} {word} check: remove it, or write type = {}",
            quoted.join(" or ")
        );
        section.optional(key, |_| Err::<(), _>(complaint));
    }
}

fn http(section: &mut Section) -> HttpCheck {
    let path = section.or("path", "/".to_owned(), text::path);
    let host = section.optional("host", text::host);
    let expect = section.or("expect", Statuses::default(), text::statuses);
    HttpCheck {
        path: path.into_inner(),
        host: host.map(Located::into_inner),
        expect: expect.into_inner(),
    }
}

fn tls(section: &mut Section) -> TlsCheck {
    let verify = *section.or("tls_verify", true, boolean);
    let ca_file = section.optional("ca_file", file);
    let sni = section.optional("sni", text::server_name);
    if let Some(ca_file) = ca_file.as_ref().filter(|_| !verify) {
        let message = format!(
            "ca_file in {} has no effect with tls_verify = false: remove one of the two",
            section.place
        );
        section.report.error(ca_file.span(), message);
    }
    TlsCheck { verify, ca_file, sni: sni.map(Located::into_inner) }
}

/// An absolute path of a file.
fn file(value: &DeValue) -> Read<PathBuf> {
    const REMEDY: &str = "write an absolute path such as \"/etc/ringway/ca.pem\"";
    let path = text(value, REMEDY)?;
    match is_absolute(path) {
        true => Ok(path.into()),
        false => Err(format!("is not the absolute path of a file: {REMEDY}")),
    }
}

fn udp(section: &mut Section) -> Option<UdpCheck> {
    let send = section.required("send", "send = \"ping\", or send = \"hex:01ff\"", text::bytes);
    let expect = section.optional("expect", text::bytes);
    Some(UdpCheck { send: send?.into_inner(), expect: expect.map(Located::into_inner) })
}

fn dns(section: &mut Section) -> Option<DnsCheck> {
    let query = section.required("query", "query = \"example.com\"", text::query);
    let record = *section.or("record", DnsRecord::A, |v| choice(v, DnsRecord::ALL));
    let rcodes = section.or("rcode", vec![Rcode::NoError], rcodes).into_inner();
    Some(DnsCheck { query: query?.into_inner(), record, rcodes })
}

/// One code or a list of them.
fn rcodes(value: &DeValue) -> Read<Vec<Rcode>> {
    let Some(items) = value.as_array() else {
        return choice(value, Rcode::ALL).map(|rcode| vec![rcode]);
    };
    if items.is_empty() {
        return Err("is empty: write rcode = \"NOERROR\" or several codes".into());
    }
    items.iter().map(|item| choice(item.get_ref(), Rcode::ALL)).collect()
}

const COMMAND: &str = "command = [\"/usr/local/lib/check\", \"argument\"]";
