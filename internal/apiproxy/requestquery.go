package apiproxy

import (
	"net/url"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// parseQuery sets Params from the query string. The query of a proxied request belongs to the backend and is not
// parsed.
func (r *Request) parseQuery(raw string) error {
	if raw == "" || r.Subresource == "proxy" {
		return nil
	}
	q, err := url.ParseQuery(raw)
	if err != nil {
		return NewBadRequest("parse the query: %.120v", err)
	}
	r.Params.DryRun = len(q["dryRun"]) > 0
	for _, key := range singleValuedParams {
		if len(q[key]) > 1 {
			return NewBadRequest("the query has %s more than once", key)
		}
	}
	r.Params.ResourceVersion = q.Get("resourceVersion")
	switch {
	case r.Verb == "list" && boolParam(q, "watch"):
		r.Verb = "watch"
	case r.Verb != "list" && r.Verb != "watch" && r.Verb != "deletecollection":
		return nil
	}
	return r.parseListParams(q)
}

// singleValuedParams lists the parameters that the adapter reads. Kubernetes uses the first value of a repeated
// parameter, and other readers may use another one, so a repeated one is refused.
var singleValuedParams = []string{"watch", "resourceVersion", "resourceVersionMatch", "limit", "continue", "sendInitialEvents",
	"allowWatchBookmarks", "timeoutSeconds", "labelSelector", "fieldSelector"}

func (r *Request) parseListParams(q url.Values) error {
	p := &r.Params
	p.ResourceVersionMatch = q.Get("resourceVersionMatch")
	p.Continue = q.Get("continue")
	p.AllowWatchBookmarks = boolParam(q, "allowWatchBookmarks")
	p.LabelSelector, p.FieldSelector = q.Get("labelSelector"), q.Get("fieldSelector")
	if q.Has("sendInitialEvents") {
		p.SendInitialEvents = new(boolParam(q, "sendInitialEvents"))
	}
	for key, to := range map[string]func(int64){
		"limit":          func(n int64) { p.Limit = n },
		"timeoutSeconds": func(n int64) { p.TimeoutSeconds = new(n) },
	} {
		if !q.Has(key) {
			continue
		}
		n, err := strconv.ParseInt(q.Get(key), 10, 64)
		if err != nil {
			return NewBadRequest("%s is not a number: %.40q", key, q.Get(key))
		}
		to(n)
	}
	if p.LabelSelector != "" {
		if _, err := labels.Parse(p.LabelSelector); err != nil {
			return NewBadRequest("parse the labelSelector: %.200v", err)
		}
	}
	if p.FieldSelector == "" {
		return nil
	}
	selector, err := fields.ParseSelector(p.FieldSelector)
	if err != nil {
		return NewBadRequest("parse the fieldSelector: %.200v", err)
	}
	name, ok := selector.RequiresExactMatch("metadata.name")
	if ok && r.Verb != "deletecollection" && !r.WatchPrefix && r.Name == "" && isPathName(name) {
		r.Name = name
	}
	return nil
}

// isPathName reports whether an object can have the name, which means that the name can be a path segment.
func isPathName(name string) bool {
	return name != "." && name != ".." && !strings.ContainsAny(name, "/%")
}

// boolParam parses a boolean as the API server does: a parameter that is present and is neither 0 nor false is
// true.
func boolParam(q url.Values, key string) bool {
	if !q.Has(key) {
		return false
	}
	v := q.Get(key)
	return v != "0" && !strings.EqualFold(v, "false")
}
