package apiproxy

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// hopHeaders lists the header fields that belong to one connection and are never forwarded. Content-Length is
// included because the message itself carries its length.
var hopHeaders = map[string]bool{
	"connection": true, "keep-alive": true, "te": true, "trailer": true, "transfer-encoding": true, "upgrade": true,
	"http2-settings": true, "proxy-connection": true, "expect": true, "content-length": true, "host": true,
}

// identityHeaders lists the fields in which a client could claim an identity. For the API server the client is always
// the pod. Prefixes end in a hyphen.
var identityHeaders = map[string]bool{"authorization": true, "cookie": true, "forwarded": true}

var identityHeaderPrefixes = []string{"proxy-", "x-remote-", "x-forwarded-"}

// NormalizeHeader normalises a field name as the most lenient parser might.
func NormalizeHeader(name string) string { return strings.ReplaceAll(strings.ToLower(name), "_", "-") }

// ListElements returns the elements of comma-separated lists in lower case.
func ListElements(values []string) (out []string) {
	for _, v := range values {
		for t := range strings.SplitSeq(v, ",") {
			if t = strings.ToLower(strings.TrimSpace(t)); t != "" {
				out = append(out, t)
			}
		}
	}
	return out
}

func containsFold(names []string, name string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) })
}

// bearerProtocol is the prefix with which a browser sends a token as a WebSocket subprotocol.
const bearerProtocol = "base64url.bearer.authorization.k8s.io."

// RequestHeaders returns the header fields that are forwarded to a cluster, both for plain requests and for
// upgrades. It removes connection fields, claims, and the fields that the client names in Connection. The
// credential is added later.
func RequestHeaders(in http.Header) http.Header {
	out := make(http.Header, len(in)+2)
	nominated := ListElements(in["Connection"])
	for name, values := range in {
		plain := NormalizeHeader(name)
		hasPrefix := func(prefix string) bool { return strings.HasPrefix(plain, prefix) }
		identifies := identityHeaders[plain] || slices.ContainsFunc(identityHeaderPrefixes, hasPrefix)
		if !identifies && !hopHeaders[plain] && !containsFold(nominated, name) {
			out[name] = values
		}
	}
	if protocols := out["Sec-Websocket-Protocol"]; len(protocols) > 0 {
		delete(out, "Sec-Websocket-Protocol")
		if rest := subprotocols(protocols); rest != "" {
			out["Sec-Websocket-Protocol"] = []string{rest}
		}
	}
	if _, ok := out["User-Agent"]; !ok {
		out["User-Agent"] = []string{""} // otherwise net/http sends its own
	}
	return out
}

// subprotocols returns a WebSocket's subprotocols without tokens.
func subprotocols(values []string) string {
	var rest []string
	for _, v := range values {
		for p := range strings.SplitSeq(v, ",") {
			if p = strings.TrimSpace(p); p != "" &&
				(len(p) < len(bearerProtocol) || !strings.EqualFold(p[:len(bearerProtocol)], bearerProtocol)) {
				rest = append(rest, p)
			}
		}
	}
	return strings.Join(rest, ", ")
}

// clusterHeader names the cluster that a response comes from.
const clusterHeader = "Mca-Cluster"

// ResponseHeaders sets the header fields of a response to the request for requested, which may be nil. The fields of the
// connection stay behind.
func ResponseHeaders(to, from http.Header, requested *url.URL) {
	nominated := ListElements(from["Connection"])
	for name, values := range from {
		// it would direct clients around the adapter
		if lower := strings.ToLower(name); lower != "content-length" && hopHeaders[lower] || lower == "alt-svc" ||
			containsFold(nominated, name) {
			continue
		}
		to[name] = values
	}
	if _, ok := from["Content-Type"]; !ok {
		to["Content-Type"] = nil // otherwise net/http guesses a type
	}
	if location := from["Location"]; len(location) == 1 {
		// A location at the cluster's own host becomes a path, because the client can reach that host only
		// through the adapter.
		if u, err := url.Parse(location[0]); err == nil && u.Host != "" && requested != nil && strings.EqualFold(u.Host, requested.Host) {
			u.Scheme, u.Host, u.User = "", "", nil
			to["Location"] = []string{u.String()}
		}
	}
}

// copyResponseHeaders is ResponseHeaders with the field that names the cluster.
func copyResponseHeaders(to, from http.Header, requested *url.URL, cluster string) {
	ResponseHeaders(to, from, requested)
	to[clusterHeader] = []string{cluster}
}
