package apiproxy

import (
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"
)

// A Request is what one HTTP request asks of a Kubernetes API, read exactly as
// the API server's own RequestInfo reads it. The zero value asks for nothing.
type Request struct {
	// NonResource is a request for something that is no object, such as
	// /version, /apis/apps/v1 or /openapi/v3; only Verb and Path are set then.
	NonResource bool
	// Verb is one of get, list, watch, create, update, patch, delete,
	// deletecollection; of a non-resource request the method in lower case.
	Verb string
	// Path is the decoded path, as it was asked for.
	Path string

	Group       string // "" is the core group
	Version     string
	Resource    string // plural, such as "pods"
	Subresource string // such as "log"; "" is the object itself
	// Namespace is "" for what is not in a namespace, and for all namespaces. Of
	// the Namespace object "x" it is "x".
	Namespace string
	// Name is the object's, also where a list or watch selects it by
	// metadata.name; "" is a collection.
	Name string
	// Tail is what follows a subresource, as it was sent, still escaped and with
	// its leading slash: the path of a proxied request, for the most part.
	Tail string
	// WatchPrefix says that the watch was asked for with the old /watch/ in the path.
	WatchPrefix bool

	Params Params
}

// Params are the query parameters that decide how a request is served. Those of
// lists are set for list, watch and deletecollection only.
type Params struct {
	ResourceVersion      string
	ResourceVersionMatch string // "", "Exact" or "NotOlderThan", or what the server will refuse
	Limit                int64  // 0: none
	Continue             string
	SendInitialEvents    *bool // nil: not said
	AllowWatchBookmarks  bool
	TimeoutSeconds       *int64 // nil: not said
	LabelSelector        string // it parses
	FieldSelector        string // it parses
	DryRun               bool
}

// Collection says whether the request is about many objects: what a rule that
// spreads them has to merge, or to refuse.
func (r *Request) Collection() bool {
	switch r.Verb {
	case "list", "deletecollection":
		return !r.NonResource
	case "watch":
		return !r.NonResource && (!r.WatchPrefix || r.Name == "")
	}
	return false
}

// Parse reads a request line. What could be read in two ways is refused with
// status 400: an escaped slash, an empty or dotted segment, a control character,
// a query that does not parse. Only what follows a proxy subresource is the
// business of who is behind it (PX-10).
//
// A HEAD is a GET. The error is a *[Refusal].
func Parse(method string, u *url.URL) (Request, error) {
	r, refusal := parse(method, u)
	if refusal != nil {
		return Request{}, refusal
	}
	return r, nil
}

func parse(method string, u *url.URL) (Request, *Refusal) {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
	case http.MethodConnect:
		return Request{}, bad("the Kubernetes API is not a forward proxy: CONNECT is refused")
	default:
		return Request{}, refuse(http.StatusMethodNotAllowed, "the Kubernetes API has no method %.20q", method)
	}
	if u.Scheme != "" || u.Host != "" || u.User != nil || u.Opaque != "" {
		return Request{}, bad("the request names a host in its first line; ask for a path")
	}
	if !strings.HasPrefix(u.Path, "/") {
		return Request{}, bad("the path does not begin with a slash")
	}
	raw := u.EscapedPath()
	r := Request{Verb: strings.ToLower(method), Path: u.Path, NonResource: true}
	parts, ends, refusal := segments(raw)
	if refusal != nil {
		return Request{}, refusal
	}
	if ok, refusal := r.take(method, raw, parts, ends); refusal != nil || !ok {
		return r, refusal
	}
	return r, r.query(u.RawQuery)
}

// segments splits and decodes an escaped path, and says of each segment where in
// raw it ends. It stops after a proxy subresource, whose tail is nobody's
// business here.
func segments(raw string) (parts []string, ends []int, _ *Refusal) {
	parts, ends = make([]string, 0, 8), make([]int, 0, 8)
	for at := 1; at < len(raw); {
		end := len(raw)
		if i := strings.IndexByte(raw[at:], '/'); i >= 0 {
			end = at + i
		}
		part, err := url.PathUnescape(raw[at:end])
		if err != nil {
			return nil, nil, bad("the path is not escaped as a URL is")
		}
		if refusal := readable(part); refusal != nil {
			return nil, nil, refusal
		}
		parts, ends = append(parts, part), append(ends, end)
		if at = end + 1; part == "proxy" && proxied(parts) {
			break
		}
	}
	return parts, ends, nil
}

// readable refuses a segment that somebody between here and the object may read
// in another way. Kubernetes allows no name with a slash or a percent sign.
func readable(part string) *Refusal {
	switch {
	case part == "":
		return bad("the path has an empty segment: \"//\" is refused")
	case part == "." || part == "..":
		return bad("the path has the segment %q, which is refused", part)
	case strings.ContainsAny(part, `/%\;`):
		return bad("the path has an escaped slash, a percent sign, a backslash or a semicolon in the segment %.60q", part)
	case !utf8.ValidString(part):
		return bad("the path is not UTF-8 in the segment %.60q", part)
	}
	for _, c := range []byte(part) {
		if c < 0x20 || c == 0x7f {
			return bad("the path has a control character in the segment %.60q", part)
		}
	}
	return nil
}

// proxied says whether the last of parts is the proxy subresource of an object.
func proxied(parts []string) bool {
	i := firstOfResource(parts)
	return i > 0 && len(parts)-i == 3
}

// firstOfResource returns the index of the resource among the segments of a
// path, or 0 if the path has none (yet).
func firstOfResource(parts []string) int {
	i := 0
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		i = 2
	case len(parts) >= 4 && parts[0] == "apis":
		i = 3
	default:
		return 0
	}
	if parts[i] == "watch" {
		if i++; i == len(parts) {
			return 0
		}
	}
	if parts[i] == "namespaces" && len(parts) > i+2 && parts[i+2] != "status" && parts[i+2] != "finalize" {
		i += 2
	}
	return i
}

// take fills in what the path says; false if it is no path of a resource.
func (r *Request) take(method, raw string, parts []string, ends []int) (bool, *Refusal) {
	i := 0
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		r.Version, i = parts[1], 2
	case len(parts) >= 4 && parts[0] == "apis":
		r.Group, r.Version, i = parts[1], parts[2], 3
	default:
		return false, nil
	}
	r.NonResource = false
	switch parts[i] {
	case "watch":
		if i++; i == len(parts) {
			return false, bad("the path ends after /watch and says not of what")
		}
		r.WatchPrefix = true
		if method != http.MethodGet && method != http.MethodHead {
			return false, refuse(http.StatusMethodNotAllowed, "a watch is asked for with GET")
		}
	case "proxy":
		return false, bad("Kubernetes no longer serves /proxy before a resource; ask for the proxy subresource")
	}
	if parts[i] == "namespaces" && len(parts) > i+1 {
		r.Namespace = parts[i+1]
	}
	i = firstOfResource(parts)
	r.Resource = parts[i]
	if len(parts) > i+1 {
		r.Name = parts[i+1]
	}
	if len(parts) > i+2 {
		r.Subresource, r.Tail = parts[i+2], raw[ends[i+2]:]
		if r.Subresource != "proxy" && r.Tail == "/" {
			r.Tail = "" // as the API server does, which cuts slashes at the end
		}
	}
	switch method {
	case http.MethodGet, http.MethodHead:
		if r.Verb = "get"; r.Name == "" {
			r.Verb = "list" // or watch, as the query says
		}
	case http.MethodPost:
		r.Verb = "create"
	case http.MethodPut:
		r.Verb = "update"
	case http.MethodPatch:
		r.Verb = "patch"
	case http.MethodDelete:
		if r.Verb = "delete"; r.Name == "" {
			r.Verb = "deletecollection"
		}
	default:
		return false, refuse(http.StatusMethodNotAllowed, "resources have no method %s", method)
	}
	if r.WatchPrefix {
		r.Verb = "watch"
	}
	return true, nil
}

// URLPath returns the path of r as clients write it: escaped, without an old
// /watch/ prefix, with the tail as it was sent.
func (r *Request) URLPath() string {
	if r.NonResource {
		return (&url.URL{Path: r.Path}).EscapedPath()
	}
	var b strings.Builder
	if r.Group == "" {
		b.WriteString("/api")
	} else {
		b.WriteString("/apis")
		segment(&b, r.Group)
	}
	segment(&b, r.Version)
	if r.Namespace != "" && r.Resource != "namespaces" {
		b.WriteString("/namespaces")
		segment(&b, r.Namespace)
	}
	segment(&b, r.Resource)
	if r.Name != "" && !r.Collection() { // that of a collection is in its selector
		segment(&b, r.Name)
	}
	if r.Subresource != "" {
		segment(&b, r.Subresource)
	}
	b.WriteString(r.Tail)
	return b.String()
}

// Object returns the GET of the object that r is about: r without its
// subresource, tail and parameters. It must have a name.
func (r *Request) Object() Request {
	o := Request{Verb: "get", Group: r.Group, Version: r.Version, Resource: r.Resource, Namespace: r.Namespace, Name: r.Name}
	p := o.URLPath()
	if u, err := url.PathUnescape(p); err == nil {
		o.Path = u
	}
	return o
}

func segment(b *strings.Builder, s string) {
	b.WriteByte('/')
	b.WriteString(url.PathEscape(s))
}
