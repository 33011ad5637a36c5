//! Names in expressions. libpcap asks these functions instead of the C library's (packaging/libpcap
//! renames them), so that a filter means the same everywhere and compiling one never waits for the
//! network: services are those of /etc/services, protocols those of /etc/protocols, and hosts and
//! networks have addresses only.
//!
//! It also keeps the name service's plug-ins, which a static binary cannot load, out of ours.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use libc::{
    AI_NUMERICHOST, AI_NUMERICSERV, EAI_SERVICE, IPPROTO_TCP, IPPROTO_UDP, addrinfo, size_t,
};

const SERVICES: &str = "/etc/services";
const PROTOCOLS: &str = "/etc/protocols";

/// glibc's `struct protoent`.
#[repr(C)]
struct Protocol {
    name: *mut c_char,
    aliases: *mut *mut c_char,
    number: c_int,
}

/// Addresses as numbers, ports as numbers or services.
///
/// # Safety
/// As of getaddrinfo(3). What it gives is freed by freeaddrinfo(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn ringway_filter_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const addrinfo,
    result: *mut *mut addrinfo,
) -> c_int {
    // SAFETY: libpcap always gives hints.
    let mut hints = unsafe { *hints };
    hints.ai_flags |= AI_NUMERICHOST | AI_NUMERICSERV;
    let protocol = match hints.ai_protocol {
        IPPROTO_TCP => "tcp",
        IPPROTO_UDP => "udp",
        _ => "sctp",
    };
    if node.is_null() {
        // One address instead of two, which would be sorted by what routes there are.
        hints.ai_family = libc::AF_INET;
    }
    let port = if service.is_null() {
        None
    } else {
        // SAFETY: not null, so a string.
        match unsafe { port_of(CStr::from_ptr(service), protocol) } {
            Some(port) => Some(port),
            None => return EAI_SERVICE,
        }
    };
    let service = port.as_ref().map_or(ptr::null(), |port| port.as_ptr());
    // SAFETY: strings or null, hints and result as the caller gave them.
    unsafe { libc::getaddrinfo(node, service, &hints, result) }
}

fn port_of(service: &CStr, protocol: &str) -> Option<CString> {
    let service = service.to_str().ok()?;
    let port = match service.parse::<u16>() {
        Ok(port) => port,
        Err(_) => number_of(Path::new(SERVICES), service, Some(protocol))?,
    };
    CString::new(port.to_string()).ok()
}

/// # Safety
/// As of getprotobyname_r(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn ringway_filter_getprotobyname_r(
    name: *const c_char,
    found: *mut Protocol,
    _buffer: *mut c_char,
    _size: size_t,
    result: *mut *mut Protocol,
) -> c_int {
    // SAFETY: libpcap gives a string.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or_default();
    let number = number_of(Path::new(PROTOCOLS), name, None);
    // SAFETY: libpcap gives room for both, and looks at the number alone.
    unsafe {
        *result = ptr::null_mut();
        if let Some(number) = number {
            let (name, aliases) = (ptr::null_mut(), ptr::null_mut());
            *found = Protocol { name, aliases, number: number.into() };
            *result = found;
        }
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn ringway_filter_getnetbyname_r(
    _name: *const c_char,
    _found: *mut c_void,
    _buffer: *mut c_char,
    _size: size_t,
    _result: *mut *mut c_void,
    _error: *mut c_int,
) -> c_int {
    libc::ENOENT
}

#[unsafe(no_mangle)]
extern "C" fn ringway_filter_gethostbyname(_name: *const c_char) -> *mut c_void {
    ptr::null_mut()
}

#[unsafe(no_mangle)]
extern "C" fn ringway_filter_ether_hostton(_name: *const c_char, _mac: *mut c_void) -> c_int {
    -1
}

/// The number beside a name in a file of lines like `https 443/tcp alias # comment`.
fn number_of(file: &Path, name: &str, protocol: Option<&str>) -> Option<u16> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| number_in(line, name, protocol))
}

fn number_in(line: &str, name: &str, protocol: Option<&str>) -> Option<u16> {
    let entry = line.split('#').next().unwrap_or_default();
    let mut words = entry.split_whitespace();
    let first = words.next()?;
    let (number, of) = match (words.next()?, protocol) {
        (word, Some(_)) => word.split_once('/')?,
        (word, None) => (word, ""),
    };
    let named = first == name || words.any(|alias| alias == name);
    (named && of == protocol.unwrap_or_default()).then(|| number.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_services_and_protocols() {
        let https = "https\t\t443/tcp\t\t\tweb-tls # secure";
        assert_eq!(number_in(https, "https", Some("tcp")), Some(443));
        assert_eq!(number_in(https, "web-tls", Some("tcp")), Some(443));
        assert_eq!(number_in(https, "https", Some("udp")), None);
        assert_eq!(number_in(https, "secure", Some("tcp")), None);
        assert_eq!(number_in("ospf 89 OSPFIGP", "ospf", None), Some(89));
        for line in ["", "# https 443/tcp", "https", "https 443", "https x/tcp", "https 65536/tcp"]
        {
            assert_eq!(number_in(line, "https", Some("tcp")), None, "{line}");
        }
    }
}
