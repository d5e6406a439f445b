package identity

import (
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
)

// normalizeHeader normalises a header name as the most tolerant parser would. It returns lower case with
// "-" for every character that is not a letter or digit. CGI and similar interfaces treat
// X_Tailscale_User and X-Tailscale-User as the same header.
func normalizeHeader(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 'A' <= r && r <= 'Z':
			return r + 'a' - 'A'
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9':
			return r
		}
		return '-'
	}, name)
}

// SameHeader reports whether the most tolerant parser treats both names as the same header.
func SameHeader(a, b string) bool { return normalizeHeader(a) == normalizeHeader(b) }

// IsIdentityHeader reports whether proxies use a header of that name, in any spelling, to pass a
// caller's identity or address.
func IsIdentityHeader(name string) bool {
	s := normalizeHeader(name)
	families := []string{"tailscale-", "x-tailscale-", "x-webauth-", "impersonate-", "x-forwarded-", "x-remote-", "remote-", "x-auth-request-"}
	return slices.Contains([]string{"forwarded", "x-real-ip", "x-client-ip", "true-client-ip", normalizeHeader(SecretHeader)}, s) ||
		slices.ContainsFunc(families, func(family string) bool { return strings.HasPrefix(s, family) })
}

// Strip removes from h every header that names a caller, in any spelling.
func Strip(h http.Header) {
	maps.DeleteFunc(h, func(name string, _ []string) bool { return IsIdentityHeader(name) })
}

// strip removes such headers and trailers from a request. HTTP/2 may still add trailers later, but
// only announced ones.
func strip(r *http.Request) {
	Strip(r.Header)
	Strip(r.Trailer)
}

// funnelHeader is the header that serve sets for a request from the public internet.
const funnelHeader = "Tailscale-Funnel-Request"

// fromFunnel reports whether any spelling of the Funnel header is present. A forged header only
// harms the client that sends it.
func fromFunnel(r *http.Request) bool {
	for name := range r.Header {
		if SameHeader(name, funnelHeader) {
			return true
		}
	}
	return false
}

// singleHeader returns the value of a header that the trusted peer sets, and whether it is present. It
// rejects a second value, another spelling of the name, and a Connection header that would make an
// earlier hop remove it. In other systems, each of these has mixed the peer's values with the
// client's (ID-07).
func singleHeader(h http.Header, name string) (value string, there bool, err error) {
	for other := range h {
		if other != name && SameHeader(other, name) {
			return "", false, errAmbiguousHeader(name, "also occurs in another spelling")
		}
	}
	for _, list := range h["Connection"] {
		for option := range strings.SplitSeq(list, ",") {
			if SameHeader(textproto.TrimString(option), name) {
				return "", false, errAmbiguousHeader(name, "is listed in the header Connection")
			}
		}
	}
	switch values := h[name]; len(values) {
	case 0:
		return "", false, nil
	case 1:
		return values[0], true, nil
	}
	return "", false, errAmbiguousHeader(name, "occurs more than once")
}

// singleHeaders returns the values of headers that may each occur once; "" for a missing header.
func singleHeaders(h http.Header, names ...string) ([]string, error) {
	values := make([]string, len(names))
	for i, name := range names {
		var err error
		if values[i], _, err = singleHeader(h, name); err != nil {
			return nil, err
		}
	}
	return values, nil
}
