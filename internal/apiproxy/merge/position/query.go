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

// A Query is what a list or a watch says of positions.
type Query struct {
	Watch     bool
	RV        string
	Match     string
	Continue  string
	Limit     int64
	Initial   *bool // sendInitialEvents
	Bookmarks bool  // allowWatchBookmarks

	broken bool // a parameter that the API cannot read
}

// ParseQuery reads a request's parameters as the API server does. Whether it is
// a watch is told by more than a parameter, so the caller says.
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

// truth is a bool as Kubernetes reads it.
func truth(s string) bool { return s != "0" && !strings.EqualFold(s, "false") }

// refused says whether the API refuses the combination whatever the positions.
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

// exactly says whether only the very position will do. With a limit and no match
// a server takes it so.
func (q Query) exactly() bool {
	return q.Match == exact || !q.Watch && q.Limit > 0 && q.Match == ""
}

// initial says whether a watch begins with the objects that are there because
// it asks so.
func (q Query) initial() bool { return q.Watch && q.Initial != nil && *q.Initial }

// An Ask is what one member is asked.
type Ask struct {
	Slot  int
	Watch bool

	RV, Match, Continue string
	Limit               int64
	Initial             *bool

	// Names asks for names only: the answer is a PartialObjectMetadataList in
	// JSON, whatever the client asked for.
	Names bool
	// Name, if it is not empty, asks for no other object than this one.
	Namespace, Name string
}

// Begins says whether a watch begins with the objects that are there.
func (a Ask) Begins() bool { return a.Watch && a.Initial != nil && *a.Initial }

// Set puts the member's question in the place of the client's, and leaves
// selectors and whatever else there is.
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
		v.Del("timeoutSeconds") // when a merged stream ends is ours to say
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
