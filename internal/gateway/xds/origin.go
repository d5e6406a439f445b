package xds

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/envoyproxy/gateway/proto/extension"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/tailplane/tailplane/internal/gateway"
)

// An origin is the Kubernetes object from which Envoy Gateway created a resource.
type origin struct {
	kind    string
	name    gateway.Name
	section string // name of the listener or rule
}

// originOf reads the origin from Envoy Gateway's metadata. ok is false if there is none.
func originOf(m *corev3.Metadata) (origin, bool) {
	resources := m.GetFilterMetadata()["envoy-gateway"].GetFields()["resources"].GetListValue().GetValues()
	if len(resources) == 0 {
		return origin{}, false
	}
	fields := resources[0].GetStructValue().GetFields()
	text := func(field string) string { return fields[field].GetStringValue() }
	o := origin{kind: text("kind"), name: gateway.Name{Namespace: text("namespace"), Name: text("name")}, section: text("sectionName")}
	return o, o.name.Name != ""
}

// gatewayOf returns the Gateway and the listener of a virtual host. Envoy Gateway 1.9.1 leaves the
// kind empty there.
func gatewayOf(vh *routev3.VirtualHost) (gateway.Name, string, bool) {
	o, ok := originOf(vh.GetMetadata())
	return o.name, o.section, ok && (o.kind == "Gateway" || o.kind == "")
}

// ruleOf parses the name that Envoy Gateway gives a route,
// "httproute/<namespace>/<name>/rule/<index>/match/<n>/<host>", or the name of a rule's cluster,
// which ends after the index.
func ruleOf(name string) (gateway.RuleKey, bool) {
	parts := strings.SplitN(name, "/", 6)
	if len(parts) < 5 || parts[3] != "rule" {
		return gateway.RuleKey{}, false
	}
	key := gateway.RuleKey{Route: gateway.Name{Namespace: parts[1], Name: parts[2]}}
	switch parts[0] {
	case "httproute":
		key.Kind = "HTTPRoute"
	case "grpcroute":
		key.Kind = "GRPCRoute"
	default:
		return gateway.RuleKey{}, false
	}
	index, err := strconv.Atoi(parts[4])
	if err != nil || index < 0 {
		return gateway.RuleKey{}, false
	}
	key.Index = index
	return key, true
}

// requestedRevisions reads the policies in a call's context. It returns the requested revision for each Gateway
// that is the target of a policy, or "" if no policy has a revision.
func requestedRevisions(resources []*extension.ExtensionResource) map[gateway.Name]string {
	revisions := map[gateway.Name]string{}
	for _, r := range resources {
		var policy struct {
			Kind     string
			Metadata struct{ Namespace string }
			Spec     struct {
				TargetRef struct{ Kind, Name string }
				Revision  string
			}
		}
		if json.Unmarshal(r.GetUnstructuredBytes(), &policy) != nil || policy.Kind != "TailscaleRoutePolicy" || policy.Spec.TargetRef.Kind != "Gateway" {
			continue
		}
		name := gateway.Name{Namespace: policy.Metadata.Namespace, Name: policy.Spec.TargetRef.Name}
		revision, _, _ := strings.Cut(policy.Spec.Revision, "-") // a counter after "-" forces another translation
		if revisions[name] == "" {
			revisions[name] = revision
		}
	}
	return revisions
}
