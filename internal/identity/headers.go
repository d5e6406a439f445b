package identity

import (
	"net/http"
	"net/textproto"
	"strings"
)

// spelling writes a header's name as the most forgiving reader would take it:
// in small letters, with "-" for what is neither letter nor digit. CGI and its
// heirs read X_Tailscale_User and X-Tailscale-User as one.
func spelling(name string) string {
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

// SameHeader reports whether two names are spellings of one header, to the most
// forgiving reader.
func SameHeader(a, b string) bool { return spelling(a) == spelling(b) }

// NamesSomebody reports whether a header of that name, in any spelling, is one
// by which proxies say who is calling or where from.
func NamesSomebody(name string) bool {
	s := spelling(name)
	switch s {
	case "forwarded", "x-real-ip", "x-client-ip", "true-client-ip", spelling(SecretHeader):
		return true
	}
	for _, family := range []string{
		"tailscale-", "x-tailscale-", "x-webauth-", "impersonate-", "x-forwarded-", "x-remote-", "remote-", "x-auth-request-",
	} {
		if strings.HasPrefix(s, family) {
			return true
		}
	}
	return false
}

// Strip takes out of h, in any spelling, each header that names somebody.
func Strip(h http.Header) {
	for name := range h {
		if NamesSomebody(name) {
			delete(h, name)
		}
	}
}

// strip does it for everything that a request carries; HTTP/2 may still fill in
// trailers, but only those that it has announced.
func strip(r *http.Request) {
	Strip(r.Header)
	Strip(r.Trailer)
}

// funnelHeader is set by serve for a request from the public internet.
const funnelHeader = "Tailscale-Funnel-Request"

// fromFunnel reports whether anybody says, in any spelling, that r comes from the
// public internet. Who forges that does himself no good.
func fromFunnel(r *http.Request) bool {
	for name := range r.Header {
		if spelling(name) == spelling(funnelHeader) {
			return true
		}
	}
	return false
}

// one returns the value of a header that the trusted peer sets, and whether it is
// there. A second value, another spelling of the name, or a Connection header
// that would have a hop before us remove it is refused: each is a way in which
// the peer's word and the client's have been mixed up elsewhere (ID-07).
func one(h http.Header, name string) (value string, there bool, err error) {
	for other := range h {
		if other != name && spelling(other) == spelling(name) {
			return "", false, ambiguous(name, "comes in another spelling")
		}
	}
	for _, list := range h["Connection"] {
		for option := range strings.SplitSeq(list, ",") {
			if spelling(textproto.TrimString(option)) == spelling(name) {
				return "", false, ambiguous(name, "is named by the header Connection")
			}
		}
	}
	switch values := h[name]; len(values) {
	case 0:
		return "", false, nil
	case 1:
		return values[0], true, nil
	}
	return "", false, ambiguous(name, "comes more than once")
}
