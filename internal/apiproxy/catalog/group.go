package catalog

import (
	"encoding/json"
	"slices"
)

// The discovery documents, reduced to the fields that are read: APIGroupDiscoveryList of
// apidiscovery.k8s.io/v2. The older form is derived from it.
type groupList struct {
	Kind       string          `json:"kind"`
	APIVersion string          `json:"apiVersion"`
	Metadata   json.RawMessage `json:"metadata,omitempty"`
	Items      []group         `json:"items"`
}

type group struct {
	Metadata struct {
		Name string `json:"name,omitempty"` // "": the core group
	} `json:"metadata"`
	Versions []version `json:"versions,omitempty"`
}

type version struct {
	Version   string     `json:"version"`
	Resources []resource `json:"resources,omitempty"`
	Freshness string     `json:"freshness,omitempty"` // Current or Stale
}

// resource keeps the text that it was read from, because later versions may add fields.
type resource struct {
	resourceFields
	text json.RawMessage
}

type resourceFields struct {
	Resource         string        `json:"resource"`
	ResponseKind     *kind         `json:"responseKind"`
	Scope            string        `json:"scope"` // Namespaced or Cluster
	SingularResource string        `json:"singularResource"`
	Verbs            []string      `json:"verbs"`
	ShortNames       []string      `json:"shortNames"`
	Categories       []string      `json:"categories"`
	Subresources     []subresource `json:"subresources"`
}

type kind struct {
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
}

type subresource struct {
	Subresource  string   `json:"subresource"`
	ResponseKind *kind    `json:"responseKind"`
	Verbs        []string `json:"verbs"`
}

// UnmarshalJSON implements [json.Unmarshaler].
func (r *resource) UnmarshalJSON(b []byte) error {
	r.text = slices.Clone(b)
	return json.Unmarshal(b, &r.resourceFields)
}

// MarshalJSON implements [json.Marshaler].
func (r resource) MarshalJSON() ([]byte, error) { return r.text, nil }

// union collects groups. Earlier sources have precedence; later ones only add what is missing.
type union struct{ groups []group }

// stale marks a group-version of which a part could not be fetched.
const stale = "Stale"

func (u *union) add(g group, old bool, shows func(group, version string) bool) {
	for _, v := range g.Versions {
		if !shows(g.Metadata.Name, v.Version) {
			continue
		}
		if old {
			v.Freshness = stale
		}
		have := u.version(g.Metadata.Name, v.Version)
		if have == nil {
			u.append(g, v)
			continue
		}
		for _, r := range v.Resources {
			if slices.ContainsFunc(have.Resources, func(h resource) bool { return h.Resource == r.Resource }) {
				continue
			}
			have.Resources = append(slices.Clip(have.Resources), r)
			if v.Freshness == stale {
				have.Freshness = stale
			}
		}
	}
}

func (u *union) version(groupName, name string) *version {
	for i := range u.groups {
		if u.groups[i].Metadata.Name != groupName {
			continue
		}
		for j := range u.groups[i].Versions {
			if v := &u.groups[i].Versions[j]; v.Version == name {
				return v
			}
		}
	}
	return nil
}

// append adds a version that is not in the union. It does not modify the groups of the source, which other
// goroutines read.
func (u *union) append(g group, v version) {
	i := slices.IndexFunc(u.groups, func(h group) bool { return h.Metadata.Name == g.Metadata.Name })
	if i < 0 {
		g.Versions = nil
		u.groups, i = append(u.groups, g), len(u.groups)
	}
	u.groups[i].Versions = append(u.groups[i].Versions, v)
}

// The older form: APIGroupList, APIGroup, APIVersions and APIResourceList of meta/v1.
type (
	legacyGroups struct {
		Kind       string        `json:"kind"`
		APIVersion string        `json:"apiVersion"`
		Groups     []legacyGroup `json:"groups"`
	}
	legacyGroup struct {
		Kind             string          `json:"kind,omitempty"`       // if it is a document itself
		APIVersion       string          `json:"apiVersion,omitempty"` // likewise
		Name             string          `json:"name"`
		Versions         []legacyVersion `json:"versions"`
		PreferredVersion legacyVersion   `json:"preferredVersion"`
	}
	legacyVersion struct {
		GroupVersion string `json:"groupVersion"`
		Version      string `json:"version"`
	}
	legacyCore struct {
		Kind                       string   `json:"kind"`
		Versions                   []string `json:"versions"`
		ServerAddressByClientCIDRs []string `json:"serverAddressByClientCIDRs"` // empty: clients keep the address that they use
	}
	legacyResources struct {
		Kind         string           `json:"kind"`
		APIVersion   string           `json:"apiVersion"`
		GroupVersion string           `json:"groupVersion"`
		Resources    []legacyResource `json:"resources"`
	}
	legacyResource struct {
		Name         string   `json:"name"`
		SingularName string   `json:"singularName"`
		Namespaced   bool     `json:"namespaced"`
		Group        string   `json:"group,omitempty"`   // if it differs from the list
		Version      string   `json:"version,omitempty"` // likewise
		Kind         string   `json:"kind"`
		Verbs        []string `json:"verbs"`
		ShortNames   []string `json:"shortNames,omitempty"`
		Categories   []string `json:"categories,omitempty"`
	}
)

func legacyGroupOf(g group) legacyGroup {
	l := legacyGroup{Name: g.Metadata.Name}
	for _, v := range g.Versions {
		l.Versions = append(l.Versions, legacyVersion{groupVersion(g.Metadata.Name, v.Version), v.Version})
	}
	if len(l.Versions) > 0 {
		l.PreferredVersion = l.Versions[0] // the aggregated form has the preferred version first
	}
	return l
}

func groupVersion(groupName, name string) string {
	if groupName == "" {
		return name
	}
	return groupName + "/" + name
}

func legacyResourcesOf(groupName string, v version) legacyResources {
	l := legacyResources{Kind: "APIResourceList", APIVersion: "v1", GroupVersion: groupVersion(groupName, v.Version), Resources: []legacyResource{}}
	of := func(name string, k *kind, namespaced bool, verbs []string) legacyResource {
		r := legacyResource{Name: name, Namespaced: namespaced, Verbs: verbs}
		if r.Verbs == nil {
			r.Verbs = []string{}
		}
		if k != nil {
			r.Kind = k.Kind
			if k.Group != "" && k.Group != groupName || k.Version != "" && k.Version != v.Version {
				r.Group, r.Version = k.Group, k.Version
			}
		}
		return r
	}
	for _, r := range v.Resources {
		namespaced := r.Scope == "Namespaced"
		if r.ResponseKind != nil && r.ResponseKind.Kind != "" { // without a kind there are only subresources
			main := of(r.Resource, r.ResponseKind, namespaced, r.Verbs)
			main.SingularName, main.ShortNames, main.Categories = r.SingularResource, r.ShortNames, r.Categories
			l.Resources = append(l.Resources, main)
		}
		for _, s := range r.Subresources {
			l.Resources = append(l.Resources, of(r.Resource+"/"+s.Subresource, s.ResponseKind, namespaced, s.Verbs))
		}
	}
	return l
}
