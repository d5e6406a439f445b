package apiproxy

import (
	"maps"
	"slices"
	"time"
)

// OpenStream describes a stream that is currently open.
type OpenStream struct {
	Kind        StreamKind `json:"kind"`
	Clusters    []string   `json:"clusters"`
	Rule        string     `json:"rule,omitempty"`
	Verb        string     `json:"verb"`
	Group       string     `json:"group,omitempty"`
	Resource    string     `json:"resource,omitempty"`
	Subresource string     `json:"subresource,omitempty"`
	Namespace   string     `json:"namespace,omitempty"`
	Name        string     `json:"name,omitempty"`
	UserAgent   string     `json:"userAgent,omitempty"`
	AuditID     string     `json:"auditID"`
	Since       time.Time  `json:"since"`
}

// openStream returns the description of v as an open stream.
func (v *RequestTelemetry) openStream() OpenStream {
	s := OpenStream{
		Kind:      v.kind,
		Clusters:  v.clusters,
		Rule:      v.rule,
		AuditID:   v.auditID,
		Since:     v.opened,
		UserAgent: Sanitize(v.r.UserAgent()),
	}
	if v.req != nil {
		s.Verb, s.Group, s.Resource, s.Subresource = Sanitize(
			v.req.Verb,
		), Sanitize(
			v.req.Group,
		), Sanitize(
			v.req.Resource,
		), Sanitize(
			v.req.Subresource,
		)
		s.Namespace, s.Name = Sanitize(v.req.Namespace), Sanitize(v.req.Name)
	}
	return s
}

// OpenStreams returns the open streams, oldest first.
func (o *Telemetry) OpenStreams() []OpenStream {
	o.mu.Lock()
	all := slices.AppendSeq([]OpenStream{}, maps.Values(o.open))
	o.mu.Unlock()
	slices.SortFunc(all, func(a, b OpenStream) int { return a.Since.Compare(b.Since) })
	return all
}
