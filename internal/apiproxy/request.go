package apiproxy

import (
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"
)

// Request is a parsed Kubernetes API request, read exactly as the API server's RequestInfo reads it. The zero
// value is no request.
type Request struct {
	// NonResource marks a request for a path that is not a resource, such as /version, /apis/apps/v1 or
	// /openapi/v3. Only Verb and Path are set then.
	NonResource bool
	// Verb is one of get, list, watch, create, update, patch, delete, deletecollection. For a non-resource
	// request it is the lower-case method.
	Verb string
	// Path is the decoded path of the request.
	Path string

	Group       string // "" is the core group
	Version     string
	Resource    string // plural, such as "pods"
	Subresource string // such as "log"; "" is the object itself
	// Namespace is "" for cluster-scoped resources and for all namespaces. For the Namespace object "x" it is
	// "x".
	Namespace string
	// Name is the name of the object, also if a list or watch selects it by metadata.name. "" is a
	// collection.
	Name string
	// Tail is the path after the subresource as the client sent it: still escaped, with its leading slash. It
	// is mostly the path of a proxied request.
	Tail string
	// WatchPrefix reports that the path has the deprecated /watch/ prefix.
	WatchPrefix bool

	Params RequestParams
}

// RequestParams are the query parameters that affect routing and merging. The list parameters are set only for list,
// watch and deletecollection.
type RequestParams struct {
	ResourceVersion      string
	ResourceVersionMatch string // "", "Exact", "NotOlderThan", or an invalid value that the server refuses
	Limit                int64  // 0: no limit
	Continue             string
	SendInitialEvents    *bool // nil: not set
	AllowWatchBookmarks  bool
	TimeoutSeconds       *int64 // nil: not set
	LabelSelector        string // valid
	FieldSelector        string // valid
	DryRun               bool
}

// IsCollection reports whether the request is for many objects. A spread must merge or refuse such a request.
func (r *Request) IsCollection() bool {
	switch r.Verb {
	case "list", "deletecollection":
		return !r.NonResource
	case "watch":
		return !r.NonResource && (!r.WatchPrefix || r.Name == "")
	}
	return false
}

// ParseRequest parses a request line. It refuses with status 400 everything that two readers could read differently:
// an escaped slash, an empty or dot segment, a control character, an invalid query. It does not check the
// path after a proxy subresource, which belongs to the backend (PX-10).
//
// ParseRequest treats HEAD as GET. The error is a *[Refusal].
func ParseRequest(method string, u *url.URL) (Request, error) {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
	case http.MethodConnect:
		return Request{}, NewBadRequest("the Kubernetes API is not a forward proxy: CONNECT is refused")
	default:
		return Request{}, NewRefusal(http.StatusMethodNotAllowed, "the Kubernetes API has no method %.20q", method)
	}
	if u.Scheme != "" || u.Host != "" || u.User != nil || u.Opaque != "" {
		return Request{}, NewBadRequest("the request line has a host; send only a path")
	}
	if !strings.HasPrefix(u.Path, "/") {
		return Request{}, NewBadRequest("the path does not begin with a slash")
	}
	raw := u.EscapedPath()
	r := Request{Verb: strings.ToLower(method), Path: u.Path, NonResource: true}
	parts, ends, err := splitPath(raw)
	if err != nil {
		return Request{}, err
	}
	ok, err := r.parsePath(method, raw, parts, ends)
	if err == nil && ok {
		err = r.parseQuery(u.RawQuery)
	}
	if err != nil {
		return Request{}, err
	}
	return r, nil
}

// splitPath splits and decodes an escaped path. ends has the offset in raw of the end of each segment. It
// stops after a proxy subresource, whose tail the adapter does not read.
func splitPath(raw string) (parts []string, ends []int, _ error) {
	parts, ends = make([]string, 0, 8), make([]int, 0, 8)
	for at := 1; at < len(raw); {
		end := len(raw)
		if i := strings.IndexByte(raw[at:], '/'); i >= 0 {
			end = at + i
		}
		part, err := url.PathUnescape(raw[at:end])
		if err != nil {
			return nil, nil, NewBadRequest("the path is not escaped like a URL")
		}
		if err := checkSegment(part); err != nil {
			return nil, nil, err
		}
		parts, ends = append(parts, part), append(ends, end)
		if at = end + 1; part == "proxy" && isProxyPath(parts) {
			break
		}
	}
	return parts, ends, nil
}

// checkSegment refuses a segment that a server between the adapter and the object could read differently.
// Kubernetes names contain no slash and no percent sign.
func checkSegment(part string) error {
	switch {
	case part == "":
		return NewBadRequest("the path has an empty segment: \"//\" is refused")
	case part == "." || part == "..":
		return NewBadRequest("the path has the segment %q, which is refused", part)
	case strings.ContainsAny(part, `/%\;`):
		return NewBadRequest("the path has an escaped slash, a percent sign, a backslash or a semicolon in the segment %.60q", part)
	case !utf8.ValidString(part):
		return NewBadRequest("the path is not UTF-8 in the segment %.60q", part)
	}
	for _, c := range []byte(part) {
		if c < 0x20 || c == 0x7f {
			return NewBadRequest("the path has a control character in the segment %.60q", part)
		}
	}
	return nil
}

// isProxyPath reports whether the last of parts is the proxy subresource of an object.
func isProxyPath(parts []string) bool {
	i := resourceIndex(parts)
	return i > 0 && len(parts)-i == 3
}

// resourceIndex returns the index of the resource among the segments of a path. It returns 0 if there is no
// resource (yet).
func resourceIndex(parts []string) int {
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

// parsePath sets the fields that come from the path. It returns false if the path is not a resource path.
func (r *Request) parsePath(method, raw string, parts []string, ends []int) (bool, error) {
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
			return false, NewBadRequest("the path ends after /watch, without a resource")
		}
		r.WatchPrefix = true
		if method != http.MethodGet && method != http.MethodHead {
			return false, NewRefusal(http.StatusMethodNotAllowed, "a watch needs the method GET")
		}
	case "proxy":
		return false, NewBadRequest("Kubernetes no longer serves /proxy before a resource; use the proxy subresource")
	}
	if parts[i] == "namespaces" && len(parts) > i+1 {
		r.Namespace = parts[i+1]
	}
	i = resourceIndex(parts)
	r.Resource = parts[i]
	if len(parts) > i+1 {
		r.Name = parts[i+1]
	}
	if len(parts) > i+2 {
		r.Subresource, r.Tail = parts[i+2], raw[ends[i+2]:]
		if r.Subresource != "proxy" && r.Tail == "/" {
			r.Tail = "" // as the API server, which trims trailing slashes
		}
	}
	switch method {
	case http.MethodGet, http.MethodHead:
		if r.Verb = "get"; r.Name == "" {
			r.Verb = "list" // or watch, depending on the query
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
		return false, NewRefusal(http.StatusMethodNotAllowed, "resources have no method %s", method)
	}
	if r.WatchPrefix {
		r.Verb = "watch"
	}
	return true, nil
}

// HasStreamSubresource reports whether the subresource is one of the long-running requests of Kubernetes.
func (r *Request) HasStreamSubresource() bool {
	switch r.Subresource {
	case "attach", "exec", "log", "portforward", "proxy":
		return true
	}
	return false
}

// URLPath returns the path of r as clients write it: escaped, without the deprecated /watch/ prefix, with the
// tail as sent.
func (r *Request) URLPath() string {
	if r.NonResource {
		return (&url.URL{Path: r.Path}).EscapedPath()
	}
	var b strings.Builder
	if r.Group == "" {
		b.WriteString("/api")
	} else {
		b.WriteString("/apis")
		writeSegment(&b, r.Group)
	}
	writeSegment(&b, r.Version)
	if r.Namespace != "" && r.Resource != "namespaces" {
		b.WriteString("/namespaces")
		writeSegment(&b, r.Namespace)
	}
	writeSegment(&b, r.Resource)
	if r.Name != "" && !r.IsCollection() { // the name of a collection is in its field selector
		writeSegment(&b, r.Name)
	}
	if r.Subresource != "" {
		writeSegment(&b, r.Subresource)
	}
	b.WriteString(r.Tail)
	return b.String()
}

// ObjectRequest returns the GET request for the object of r: without subresource, tail and parameters. r must have a
// name.
func (r *Request) ObjectRequest() Request {
	o := Request{Verb: "get", Group: r.Group, Version: r.Version, Resource: r.Resource, Namespace: r.Namespace, Name: r.Name}
	p := o.URLPath()
	if u, err := url.PathUnescape(p); err == nil {
		o.Path = u
	}
	return o
}

func writeSegment(b *strings.Builder, s string) {
	b.WriteByte('/')
	b.WriteString(url.PathEscape(s))
}
