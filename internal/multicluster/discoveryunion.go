package multicluster

import (
	"encoding/json"
	"slices"
)

// The discovery documents, reduced to the fields that are read: APIGroupDiscoveryList of
// apidiscovery.k8s.io/v2. The older form is derived from it.
type apiGroupList struct {
	Kind       string          `json:"kind"`
	APIVersion string          `json:"apiVersion"`
	Metadata   json.RawMessage `json:"metadata,omitempty"`
	Items      []apiGroup      `json:"items"`
}

type apiGroup struct {
	Metadata struct {
		Name string `json:"name,omitempty"` // "": the core group
	} `json:"metadata"`
	Versions []apiGroupVersion `json:"versions,omitempty"`
}

type apiGroupVersion struct {
	Version   string        `json:"version"`
	Resources []apiResource `json:"resources,omitempty"`
	Freshness string        `json:"freshness,omitempty"` // Current or Stale
}

// apiResource keeps the text that it was read from, because later versions may add fields.
type apiResource struct {
	apiResourceFields
	text json.RawMessage
}

type apiResourceFields struct {
	Resource         string           `json:"resource"`
	ResponseKind     *apiKind         `json:"responseKind"`
	Scope            string           `json:"scope"` // Namespaced or Cluster
	SingularResource string           `json:"singularResource"`
	Verbs            []string         `json:"verbs"`
	ShortNames       []string         `json:"shortNames"`
	Categories       []string         `json:"categories"`
	Subresources     []apiSubresource `json:"subresources"`
}

type apiKind struct {
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
}

type apiSubresource struct {
	Subresource  string   `json:"subresource"`
	ResponseKind *apiKind `json:"responseKind"`
	Verbs        []string `json:"verbs"`
}

// UnmarshalJSON implements [json.Unmarshaler].
func (r *apiResource) UnmarshalJSON(b []byte) error {
	r.text = slices.Clone(b)
	return json.Unmarshal(b, &r.apiResourceFields)
}

// MarshalJSON implements [json.Marshaler].
func (r apiResource) MarshalJSON() ([]byte, error) { return r.text, nil }

// discoveryUnion collects groups. Earlier sources have precedence; later ones only add what is missing.
type discoveryUnion struct{ groups []apiGroup }

// freshnessStale marks a group-version of which a part could not be fetched.
const freshnessStale = "Stale"

func (u *discoveryUnion) add(g apiGroup, old bool, shows func(group, version string) bool) {
	for _, v := range g.Versions {
		if !shows(g.Metadata.Name, v.Version) {
			continue
		}
		if old {
			v.Freshness = freshnessStale
		}
		have := u.version(g.Metadata.Name, v.Version)
		if have == nil {
			u.append(g, v)
			continue
		}
		for _, r := range v.Resources {
			if slices.ContainsFunc(have.Resources, func(h apiResource) bool { return h.Resource == r.Resource }) {
				continue
			}
			have.Resources = append(slices.Clip(have.Resources), r)
			if v.Freshness == freshnessStale {
				have.Freshness = freshnessStale
			}
		}
	}
}

func (u *discoveryUnion) version(groupName, name string) *apiGroupVersion {
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
func (u *discoveryUnion) append(g apiGroup, v apiGroupVersion) {
	i := slices.IndexFunc(u.groups, func(h apiGroup) bool { return h.Metadata.Name == g.Metadata.Name })
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

func legacyGroupOf(g apiGroup) legacyGroup {
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

func legacyResourcesOf(groupName string, v apiGroupVersion) legacyResources {
	l := legacyResources{
		Kind:         "APIResourceList",
		APIVersion:   "v1",
		GroupVersion: groupVersion(groupName, v.Version),
		Resources:    []legacyResource{},
	}
	of := func(name string, k *apiKind, namespaced bool, verbs []string) legacyResource {
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
