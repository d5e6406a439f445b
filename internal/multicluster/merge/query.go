package merge

import (
	"net/url"
	"strconv"
	"strings"
)

// Values of resourceVersionMatch.
const (
	matchExact        = "Exact"
	matchNotOlderThan = "NotOlderThan"
)

// Query holds the parameters of a list or watch that concern positions.
type Query struct {
	Watch     bool
	RV        string
	Match     string
	Continue  string
	Limit     int64
	Initial   *bool // sendInitialEvents
	Bookmarks bool  // allowWatchBookmarks

	malformed bool // a parameter that the API cannot parse
}

// ParseQuery parses the query parameters as the API server does. watch is an input, because more than a
// parameter decides whether a request is a watch.
func ParseQuery(v url.Values, watch bool) Query {
	q := Query{Watch: watch, RV: v.Get("resourceVersion"), Match: v.Get("resourceVersionMatch"), Continue: v.Get("continue")}
	if s := v.Get("limit"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		q.Limit, q.malformed = max(n, 0), err != nil
	}
	if v.Has("sendInitialEvents") {
		q.Initial = new(parseBool(v.Get("sendInitialEvents")))
	}
	q.Bookmarks = v.Has("allowWatchBookmarks") && parseBool(v.Get("allowWatchBookmarks"))
	return q
}

// parseBool parses a bool as Kubernetes does.
func parseBool(s string) bool { return s != "0" && !strings.EqualFold(s, "false") }

// isInvalid reports whether the API refuses the combination of parameters, whatever the positions are.
func (q Query) isInvalid() bool {
	known := q.Match == matchExact || q.Match == matchNotOlderThan
	switch {
	case q.malformed:
		return true
	case q.Watch:
		return (q.Initial != nil) != (q.Match == matchNotOlderThan) || q.Match == matchExact ||
			q.Match != "" && (!known || q.Continue != "")
	case q.Match != "":
		return !known || q.RV == "" || q.Continue != "" || q.Match == matchExact && q.RV == "0" || q.Initial != nil
	}
	return q.Initial != nil
}

// isExact reports whether the list must be at exactly the given position. A server treats a limit without a
// match in the same way.
func (q Query) isExact() bool {
	return q.Match == matchExact || !q.Watch && q.Limit > 0 && q.Match == ""
}

// wantsInitial reports whether the client requested initial events.
func (q Query) wantsInitial() bool { return q.Watch && q.Initial != nil && *q.Initial }

// MemberRequest is a request to one member.
type MemberRequest struct {
	Slot  int
	Watch bool

	RV, Match, Continue string
	Limit               int64
	Initial             *bool

	// Names requests only names: the response is a PartialObjectMetadataList in JSON, whatever the client
	// requested.
	Names bool
	// Name, if not empty, selects only this object.
	Namespace, Name string
}

// isInitial reports whether a watch starts with the existing objects.
func (a MemberRequest) isInitial() bool { return a.Watch && a.Initial != nil && *a.Initial }

// Set replaces the client's position parameters in v by those of the member. It keeps selectors and all other
// parameters.
func (a MemberRequest) Set(v url.Values) {
	set := func(key, value string) {
		if value == "" {
			v.Del(key)
		} else {
			v.Set(key, value)
		}
	}
	set("resourceVersion", a.RV)
	set("resourceVersionMatch", a.Match)
	set("continue", a.Continue)
	v.Del("limit")
	if a.Limit > 0 {
		v.Set("limit", strconv.FormatInt(a.Limit, 10))
	}
	v.Del("sendInitialEvents")
	if a.Initial != nil {
		v.Set("sendInitialEvents", strconv.FormatBool(*a.Initial))
	}
	v.Del("watch")
	v.Del("allowWatchBookmarks")
	if a.Watch {
		v.Set("watch", "true")
		v.Set("allowWatchBookmarks", "true")
		v.Del("timeoutSeconds") // the adapter decides when a merged stream ends
	}
	if a.Name == "" {
		return
	}
	only := "metadata.name=" + fieldValue(a.Name)
	if a.Namespace != "" {
		only += ",metadata.namespace=" + fieldValue(a.Namespace)
	}
	if s := v.Get("fieldSelector"); s != "" {
		only = s + "," + only
	}
	v.Set("fieldSelector", only)
}

func fieldValue(s string) string {
	return strings.NewReplacer(`\`, `\\`, `,`, `\,`, `=`, `\=`).Replace(s)
}
