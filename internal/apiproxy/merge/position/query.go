package position

import (
	"net/url"
	"strconv"
	"strings"
)

// Values of resourceVersionMatch.
const (
	exact        = "Exact"
	notOlderThan = "NotOlderThan"
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

	broken bool // a parameter that the API cannot parse
}

// ParseQuery parses the query parameters as the API server does. watch is an input, because more than a
// parameter decides whether a request is a watch.
func ParseQuery(v url.Values, watch bool) Query {
	q := Query{Watch: watch, RV: v.Get("resourceVersion"), Match: v.Get("resourceVersionMatch"), Continue: v.Get("continue")}
	if s := v.Get("limit"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		q.Limit, q.broken = max(n, 0), err != nil
	}
	if v.Has("sendInitialEvents") {
		q.Initial = new(truth(v.Get("sendInitialEvents")))
	}
	q.Bookmarks = v.Has("allowWatchBookmarks") && truth(v.Get("allowWatchBookmarks"))
	return q
}

// truth parses a bool as Kubernetes does.
func truth(s string) bool { return s != "0" && !strings.EqualFold(s, "false") }

// refused reports whether the API refuses the combination of parameters, whatever the positions are.
func (q Query) refused() bool {
	known := q.Match == exact || q.Match == notOlderThan
	switch {
	case q.broken:
		return true
	case q.Watch:
		return (q.Initial != nil) != (q.Match == notOlderThan) || q.Match == exact || q.Match != "" && (!known || q.Continue != "")
	case q.Match != "":
		return !known || q.RV == "" || q.Continue != "" || q.Match == exact && q.RV == "0" || q.Initial != nil
	}
	return q.Initial != nil
}

// exactly reports whether the list must be at exactly the given position. A server treats a limit without a
// match in the same way.
func (q Query) exactly() bool {
	return q.Match == exact || !q.Watch && q.Limit > 0 && q.Match == ""
}

// initial reports whether the client requested initial events.
func (q Query) initial() bool { return q.Watch && q.Initial != nil && *q.Initial }

// Ask is a request to one member.
type Ask struct {
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

// Begins reports whether a watch starts with the existing objects.
func (a Ask) Begins() bool { return a.Watch && a.Initial != nil && *a.Initial }

// Set replaces the client's position parameters in v by those of the member. It keeps selectors and all other
// parameters.
func (a Ask) Set(v url.Values) {
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
