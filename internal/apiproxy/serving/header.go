package serving

import (
	"net/http"
	"net/url"
	"strings"
)

// hop are the fields that belong to one connection and never cross to another.
// Content-Length is there because length is a property of the message here.
var hop = map[string]bool{
	"connection": true, "keep-alive": true, "te": true, "trailer": true, "transfer-encoding": true, "upgrade": true,
	"http2-settings": true, "proxy-connection": true, "expect": true, "content-length": true, "host": true,
}

// claims are the fields in which a client could say who it is: to the API server
// it is the pod and nobody else. Prefixes end in a hyphen.
var claims = map[string]bool{"authorization": true, "cookie": true, "forwarded": true}

var claimPrefixes = []string{"proxy-", "x-remote-", "x-forwarded-"}

// plainName is a field's name as the most forgiving of readers might take it.
func plainName(name string) string { return strings.ReplaceAll(strings.ToLower(name), "_", "-") }

// tokens returns the members of comma lists, in lower case.
func tokens(values []string) (out []string) {
	for _, v := range values {
		for t := range strings.SplitSeq(v, ",") {
			if t = strings.ToLower(strings.TrimSpace(t)); t != "" {
				out = append(out, t)
			}
		}
	}
	return out
}

// bearerProtocol is how a browser carries a token in a WebSocket's subprotocols.
const bearerProtocol = "base64url.bearer.authorization.k8s.io."

// outbound returns the header fields that go on to a cluster, for plain requests
// and upgrades alike: what is left when connection, claims and all that the
// client nominated are gone. The credential is not among them; it is set later.
func outbound(in http.Header) http.Header {
	out := make(http.Header, len(in)+2)
	nominated := tokens(in["Connection"])
next:
	for name, values := range in {
		plain := plainName(name)
		if hop[plain] || claims[plain] {
			continue
		}
		for _, prefix := range claimPrefixes {
			if strings.HasPrefix(plain, prefix) {
				continue next
			}
		}
		for _, n := range nominated {
			if strings.EqualFold(n, name) {
				continue next
			}
		}
		out[name] = values
	}
	if protocols := out["Sec-Websocket-Protocol"]; len(protocols) > 0 {
		delete(out, "Sec-Websocket-Protocol")
		if rest := subprotocols(protocols); rest != "" {
			out["Sec-Websocket-Protocol"] = []string{rest}
		}
	}
	if _, ok := out["User-Agent"]; !ok {
		out["User-Agent"] = []string{""} // or net/http would send its own
	}
	return out
}

// subprotocols is a WebSocket's list without tokens.
func subprotocols(values []string) string {
	var rest []string
	for _, v := range values {
		for p := range strings.SplitSeq(v, ",") {
			if p = strings.TrimSpace(p); p != "" && (len(p) < len(bearerProtocol) || !strings.EqualFold(p[:len(bearerProtocol)], bearerProtocol)) {
				rest = append(rest, p)
			}
		}
	}
	return strings.Join(rest, ", ")
}

// clusterHeader tells which cluster an answer came from.
const clusterHeader = "Mca-Cluster"

// inbound fills in the header fields of an answer.
func inbound(to, from http.Header, asked *url.URL, cluster string) {
	nominated := tokens(from["Connection"])
next:
	for name, values := range from {
		if lower := strings.ToLower(name); lower != "content-length" && hop[lower] || lower == "alt-svc" { // which would lead around us
			continue
		}
		for _, n := range nominated {
			if strings.EqualFold(n, name) {
				continue next
			}
		}
		to[name] = values
	}
	if _, ok := from["Content-Type"]; !ok {
		to["Content-Type"] = nil // or net/http would guess one
	}
	if location := from["Location"]; len(location) == 1 {
		// Of the cluster's own host: the client has no other way there than here.
		if u, err := url.Parse(location[0]); err == nil && u.Host != "" && asked != nil && strings.EqualFold(u.Host, asked.Host) {
			u.Scheme, u.Host, u.User = "", "", nil
			to["Location"] = []string{u.String()}
		}
	}
	to[clusterHeader] = []string{cluster}
}
