//! ringway-bpf-tests
