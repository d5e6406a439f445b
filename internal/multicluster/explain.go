package multicluster

import (
	"errors"
	"net/url"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/multicluster/config"
)

// Explanation describes a routing decision for people and programs: the request, the clusters that serve it,
// and the reason.
type Explanation struct {
	NonResource bool   `json:"nonResource,omitempty"`
	Verb        string `json:"verb"`
	Group       string `json:"group,omitempty"`
	Version     string `json:"version,omitempty"`
	Resource    string `json:"resource,omitempty"`
	Subresource string `json:"subresource,omitempty"`
	Namespace   string `json:"namespace,omitempty"`
	Name        string `json:"name,omitempty"`

	Kind     DecisionKind      `json:"kind"`
	Rule     string            `json:"rule,omitempty"`
	Why      string            `json:"why"`
	Clusters []ExplainedMember `json:"clusters,omitempty"`
	Place    string            `json:"place,omitempty"` // the cluster that would create the object, if the caller gave a body
	PlaceWhy string            `json:"placeWhy,omitempty"`
	Status   int               `json:"status,omitempty"` // HTTP status of a refusal
	Message  string            `json:"message,omitempty"`
	Warnings []string          `json:"warnings,omitempty"`
}

// ExplainedMember is one cluster of a decision.
type ExplainedMember struct {
	Name       string   `json:"name"`
	Slot       int      `json:"slot"`
	Namespaces []string `json:"namespaces,omitempty"` // of a union: the namespace patterns that rules assign to it
	Others     bool     `json:"others,omitempty"`     // of a union: it also has all namespaces that no rule names
}

// Explain returns how the adapter would route a request. body and contentType are those of the request.
// Without a body, Explain reports that the decision depends on the body. Explain does not know which member
// of a spread holds an object or which clusters are up; only the running adapter knows both.
func (t *Table) Explain(method string, u *url.URL, userAgent, contentType string, body []byte) Explanation {
	r, err := apiproxy.ParseRequest(method, u)
	if err != nil {
		return explainRefusal(Explanation{Verb: method, Kind: DecisionDeny, Why: "the request is invalid"}, err)
	}
	e := Explanation{
		NonResource: r.NonResource,
		Verb:        r.Verb,
		Group:       r.Group,
		Version:     r.Version,
		Resource:    r.Resource,
		Subresource: r.Subresource,
		Namespace:   r.Namespace,
		Name:        r.Name,
	}
	input := RouteInput{UserAgent: userAgent, ContentType: contentType}
	d := t.Route(&r, input)
	if body != nil && (d.Kind == DecisionBody || d.Kind == DecisionSpread && r.Creates(contentType)) {
		if input.Object, err = parseObject(body, contentType, ""); err != nil {
			return explainRefusal(e, err)
		}
		d = t.Route(&r, input)
	}
	e.Kind, e.Rule, e.Why, e.Warnings = d.Kind, d.Rule, d.Why, d.Warnings
	if d.Refusal != nil {
		e.Status, e.Message = d.Refusal.Status, d.Refusal.Message
	}
	if d.Cluster != "" {
		e.Clusters = []ExplainedMember{{Name: d.Cluster, Slot: t.config.Cluster(d.Cluster).Slot}}
	}
	for _, m := range d.Members {
		x := ExplainedMember{Name: m.Cluster, Slot: t.config.Cluster(m.Cluster).Slot}
		if m.Namespaces != nil {
			x.Namespaces, x.Others = m.Namespaces.Patterns()
		}
		e.Clusters = append(e.Clusters, x)
	}
	if d.Kind == DecisionSpread && input.Object != nil {
		return e.explainPlacement(d.Spread, &r, input.Object)
	}
	return e
}

func (e Explanation) explainPlacement(s *config.Spread, r *apiproxy.Request, o *requestObject) Explanation {
	if s.Strategy == config.StrategyWeighted || s.Strategy == config.StrategyRoundRobin || o.Name == "" && r.Name == "" {
		e.Warnings = append(
			e.Warnings,
			"the cluster may depend on chance or on the round-robin position; this is one of several possible answers",
		)
	}
	if ref, ok := o.anchor(); ok && (s.OwnerReferences == config.FollowOwners || o.InvolvedObject != nil) {
		e.Warnings = append(e.Warnings, "it goes to the cluster of "+ref.Kind+" "+ref.Name+", which only the running adapter knows")
	}
	p, err := placeObject(s, r, o, placementInput{})
	if err != nil {
		return explainRefusal(e, err)
	}
	e.Place, e.PlaceWhy = p.Cluster, p.Why
	return e
}

func explainRefusal(e Explanation, err error) Explanation {
	if e.Kind = DecisionDeny; e.Why == "" {
		e.Why = "no cluster is possible for its object"
	}
	e.Message = err.Error()
	if r, ok := errors.AsType[*apiproxy.Refusal](err); ok {
		e.Status = r.Status
	}
	return e
}

// ValidationReport lists the errors and warnings of a configuration.
type ValidationReport struct {
	Valid    bool                `json:"valid"`
	Errors   []config.Diagnostic `json:"errors,omitempty"`
	Warnings []config.Diagnostic `json:"warnings,omitempty"`
	// Moves lists the differences from the previous configuration that require a higher epoch. It is set only
	// if both have the same epoch.
	Moves []string `json:"moves,omitempty"`
}

// ValidateConfig checks a configuration. If previous is not nil, it also checks whether doc may follow it. It
// returns an error if previous itself is invalid.
func ValidateConfig(doc, previous []byte) (ValidationReport, error) {
	d, warnings, err := config.Parse(doc)
	if err != nil {
		invalid, ok := errors.AsType[*config.InvalidError](err)
		if !ok {
			return ValidationReport{}, err
		}
		return ValidationReport{Errors: invalid.Diagnostics}, nil
	}
	report := ValidationReport{Valid: true, Warnings: warnings}
	if previous == nil {
		return report, nil
	}
	prev, _, err := config.Parse(previous)
	if err != nil {
		return ValidationReport{}, err
	}
	if err := CheckEpoch(prev, d); err != nil {
		report.Valid = false
		report.Errors = append(report.Errors, config.Diagnostic{Message: err.Error()})
		if d.Epoch == prev.Epoch {
			report.Moves = listMoves(prev, d)
		}
	}
	return report, nil
}
