// Package tailplane holds the laws of the repository as tests: who may import
// whom, which modules may be needed, how large and how slow to start the
// programs may be.
package tailplane

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/tailplane/tailplane/"

// plan is the floor plan: every room, and the rooms it may import. A new room,
// or a new door between rooms, is a line here and a sentence in docs/decisions.
var plan = map[string]string{
	"api/gateway/v1alpha1": "",
	"api/v1alpha1":         "",

	// util: small packages, each named for one thing
	"internal/util/broadcast": "", // readers that wait for the next change of a value
	"internal/util/retry":     "", // the context sleep of loops that try again

	// walls and words
	"internal/problem":         "",
	"internal/printable":       "",
	"internal/profile":         "",
	"internal/redact":          "",
	"internal/authority":       "",
	"internal/access":          "internal/problem",
	"internal/audit":           "internal/access internal/printable internal/problem internal/util/broadcast",
	"internal/audit/auditotlp": "internal/audit",
	"internal/door":            "internal/access internal/audit internal/door/framing internal/problem",
	"internal/door/framing":    "",
	"internal/identity":        "internal/access internal/problem",
	"internal/settings":        "internal/access",
	"internal/door/openapi":    "internal/door internal/problem", // for the test that writes the reference

	"internal/manifest":          "", // objects as people write them
	"internal/manifest/linediff": "",
	"internal/manifest/tfvars":   "internal/manifest",

	// worlds
	"internal/tailnet":          "internal/access internal/problem internal/util/broadcast",
	"internal/tailnet/tailnets": "",
	"internal/kube":             "internal/util/retry",

	// rooms and their alcoves
	"internal/signin":                           "internal/access internal/door internal/problem internal/util/retry",
	"internal/apiproxy":                         "internal/apiproxy/document internal/apiproxy/jsonscan",
	"internal/apiproxy/catalog":                 "",
	"internal/apiproxy/document":                "",
	"internal/apiproxy/jsonscan":                "",
	"internal/apiproxy/rewrite":                 "internal/apiproxy/jsonscan",
	"internal/apiproxy/shelter":                 "internal/apiproxy internal/apiproxy/jsonscan internal/apiproxy/rewrite",
	"internal/apiproxy/fanout":                  "internal/apiproxy internal/apiproxy/catalog internal/apiproxy/document internal/apiproxy/merge internal/apiproxy/merge/position internal/apiproxy/merge/wire internal/apiproxy/observe internal/apiproxy/rewrite internal/apiproxy/roster internal/apiproxy/serving internal/apiproxy/shelter internal/apiproxy/upstream",
	"internal/apiproxy/merge":                   "internal/apiproxy/merge/position internal/apiproxy/merge/wire internal/util/retry",
	"internal/apiproxy/merge/position":          "internal/apiproxy/merge/wire",
	"internal/apiproxy/merge/wire":              "",
	"internal/apiproxy/observe":                 "internal/apiproxy internal/apiproxy/observe/otlpjson internal/apiproxy/observe/record internal/apiproxy/observe/text internal/printable",
	"internal/apiproxy/observe/adminport":       "internal/apiproxy internal/apiproxy/observe internal/apiproxy/observe/text internal/printable internal/profile",
	"internal/apiproxy/observe/otlpjson":        "internal/util/retry",
	"internal/apiproxy/observe/record":          "",
	"internal/apiproxy/observe/text":            "internal/printable",
	"internal/apiproxy/podface":                 "",
	"internal/apiproxy/roster":                  "internal/apiproxy internal/apiproxy/catalog internal/apiproxy/document internal/apiproxy/upstream",
	"internal/apiproxy/serving":                 "internal/apiproxy internal/apiproxy/merge/wire internal/apiproxy/observe internal/apiproxy/socket internal/apiproxy/upstream internal/door/framing",
	"internal/apiproxy/socket":                  "",
	"internal/apiproxy/upstream":                "",
	"internal/gossip":                           "internal/door internal/gossip/endpoint internal/gossip/strictjson internal/gossip/table internal/problem internal/util/retry",
	"internal/gossip/gossiphttp":                "internal/access internal/door internal/gossip",
	"internal/gossip/endpoint":                  "", // below it: where a server may be, how messages are read, maps that stay
	"internal/gossip/strictjson":                "",
	"internal/gossip/table":                     "",
	"internal/gossip/memberlist":                "internal/access internal/door internal/gossip internal/problem",
	"internal/gossip/gossipkube":                "internal/door internal/gossip internal/kube",
	"internal/fleet":                            "api/v1alpha1",
	"internal/fleet/fleetkube":                  "api/v1alpha1 internal/fleet internal/fleet/arc internal/fleet/fleetkube/account internal/fleet/fleetkube/adopt internal/fleet/fleetkube/adopted internal/fleet/fleetkube/arcworld internal/fleet/fleetkube/board internal/fleet/fleetkube/findings internal/fleet/fleetkube/furnish internal/fleet/fleetkube/ledger internal/fleet/fleetkube/listeners internal/fleet/fleetkube/mark internal/fleet/forge internal/fleet/isolation internal/fleet/truth internal/kube",
	"internal/fleet/fleetkube/account":          "api/v1alpha1 internal/fleet internal/fleet/forge",                                                                                                       // below it: the ways to forges
	"internal/fleet/fleetkube/adopt":            "api/v1alpha1 internal/fleet internal/fleet/arc internal/fleet/fleetkube/arcworld internal/fleet/fleetkube/board",                                        // below it: scale sets of others
	"internal/fleet/fleetkube/adopted":          "api/v1alpha1 internal/fleet internal/fleet/fleetkube/board internal/fleet/fleetkube/findings internal/fleet/truth",                                      // below it: whose jobs those take
	"internal/fleet/fleetkube/mark":             "api/v1alpha1",                                                                                                                                           // below it: what tells runners of ours
	"internal/fleet/fleetkube/arcworld":         "api/v1alpha1 internal/fleet internal/fleet/arc internal/util/retry",                                                                                     // below it: ARC's objects, followed
	"internal/fleet/fleetkube/board":            "api/v1alpha1 internal/fleet internal/fleet/arc internal/fleet/fleetkube/account internal/fleet/fleetkube/ledger internal/fleet/isolation internal/kube", // below it: what looks saw, and what is said of it
	"internal/fleet/fleetkube/findings":         "api/v1alpha1 internal/fleet internal/fleet/arc internal/fleet/fleetkube/account internal/fleet/forge internal/fleet/truth",                              // below it: what does not agree
	"internal/fleet/fleetkube/furnish":          "api/v1alpha1 internal/fleet internal/fleet/isolation",                                                                                                   // below it: objects that are to be, and those that are
	"internal/fleet/fleetkube/ledger":           "api/v1alpha1 internal/fleet",                                                                                                                            // below it: what is given to whom
	"internal/fleet/fleetkube/listeners":        "internal/fleet",                                                                                                                                         // below it: how many jobs GitHub gave a scale set
	"internal/fleet/forge":                      "internal/fleet/forge/appkey internal/fleet/forge/exchange internal/fleet/forge/failure internal/fleet/forge/gitname internal/fleet/forge/place internal/fleet/forge/rate internal/fleet/forge/revision internal/fleet/forge/secret internal/fleet/forge/tree",
	"internal/fleet/forge/appkey":               "", // below it: an App's key, one host, why something was not done, names in paths, a change of a file, what is not told, lists of files
	"internal/fleet/forge/exchange":             "internal/fleet/forge/secret",
	"internal/fleet/forge/failure":              "",
	"internal/fleet/forge/gitname":              "",
	"internal/fleet/forge/place":                "",
	"internal/fleet/forge/rate":                 "",
	"internal/fleet/forge/revision":             "internal/fleet/forge/failure internal/fleet/forge/gitname internal/fleet/forge/secret",
	"internal/fleet/forge/secret":               "",
	"internal/fleet/forge/tree":                 "internal/fleet/forge/failure internal/fleet/forge/gitname",
	"internal/fleet/change":                     "internal/manifest",                                    // below it: changes by pull request
	"internal/fleet/canary":                     "internal/util/retry",                                  // below it: what tries whether the network keeps the policies
	"internal/fleet/stack":                      "internal/fleet/change internal/manifest/tfvars",       // below it: variables of Tofu stacks
	"internal/fleet/isolation":                  "api/v1alpha1 internal/fleet internal/fleet/canary",    // below it: what keeps runners apart, and runs them
	"internal/fleet/truth":                      "api/v1alpha1 internal/fleet",                          // below it: what the forges have, against what there should be
	"internal/fleet/arc":                        "api/v1alpha1 internal/fleet internal/fleet/isolation", // below it: what the controller of GitHub's runners says
	"internal/gateway":                          "api/gateway/v1alpha1 internal/gateway/portmap",
	"internal/gateway/discovery":                "api/gateway/v1alpha1 internal/gateway",
	"internal/gateway/gatewaykube":              "api/gateway/v1alpha1 internal/gateway internal/gateway/gatewaykube/attachments internal/gateway/gatewaykube/extensiontls internal/gateway/gatewaykube/gather internal/gateway/gatewaykube/groups internal/gateway/gatewaykube/services internal/gateway/discovery internal/gateway/standing internal/gateway/workload internal/kube internal/tailnet/tailnets internal/util/retry",
	"internal/gateway/gatewaykube/extensiontls": "api/gateway/v1alpha1 internal/authority internal/kube internal/util/retry", // below it: the certificates of the extension server
	"internal/gateway/gatewaykube/gather":       "api/gateway/v1alpha1 internal/gateway internal/gateway/portmap",
	"internal/gateway/gatewaykube/services":     "api/gateway/v1alpha1 internal/gateway internal/gateway/gatewaykube/gather internal/gateway/vip internal/kube internal/relay/document internal/tailnet/tailnets",
	"internal/gateway/gatewaykube/attachments":  "api/gateway/v1alpha1 internal/gateway internal/gateway/gatewaykube/gather internal/kube",
	"internal/gateway/gatewaykube/groups":       "api/gateway/v1alpha1 internal/gateway internal/gateway/gatewaykube/gather internal/gateway/portmap internal/gateway/upkeep internal/gateway/workload internal/kube internal/relay/document internal/relay/relaykube internal/tailnet/tailnets",
	"internal/gateway/standing":                 "", // below it: how the operator stands with a tailnet
	"internal/gateway/upkeep":                   "", // below it: what a group of relays needs next
	"internal/gateway/portmap":                  "", // below it: which service has which port of the relays
	"internal/gateway/vip":                      "", // below it: whose a service of a tailnet is
	"internal/gateway/gatewayxds":               "internal/gateway",
	"internal/gateway/workload":                 "api/gateway/v1alpha1", // below it: the objects of one group of relays
	"internal/inject":                           "internal/door/framing internal/manifest internal/manifest/linediff",
	"internal/inject/injectkube":                "internal/authority internal/inject internal/kube internal/util/retry",
	"internal/signin/signinkube":                "api/v1alpha1 internal/access internal/door internal/kube internal/signin",

	"internal/relay":           "internal/relay/document internal/util/retry internal/util/broadcast",
	"internal/relay/document":  "",
	"internal/relay/relaykube": "internal/util/retry",

	// surfaces
	"internal/plane":                    "internal/access internal/audit internal/door internal/problem internal/util/broadcast",
	"internal/plane/planegit":           "internal/fleet/change internal/fleet/forge internal/fleet/forge/tree internal/plane/planechange internal/problem",
	"internal/plane/planechange":        "internal/access internal/door internal/fleet/change internal/manifest/linediff internal/plane internal/problem internal/redact",
	"internal/plane/expose":             "internal/access internal/door internal/identity internal/problem internal/util/retry",
	"internal/plane/planefleet":         "internal/access internal/door internal/plane internal/problem", // below it: runners and holds
	"internal/plane/planedrift":         "internal/fleet/change internal/plane internal/plane/planechange internal/plane/planefleet internal/problem",
	"internal/plane/planeenroll":        "internal/access internal/door internal/fleet/change internal/plane internal/plane/planechange internal/plane/planefleet internal/problem",
	"internal/plane/planejobs":          "internal/access internal/door internal/plane internal/plane/planefleet internal/problem", // below it: single runners
	"internal/plane/planemcp":           "internal/access internal/audit internal/door internal/plane internal/plane/planechange internal/plane/planeenroll internal/plane/planefleet internal/plane/planejobs internal/plane/planemetrics internal/problem internal/redact",
	"internal/plane/planemetrics":       "internal/access internal/door internal/plane internal/plane/planechange internal/plane/planefleet internal/problem", // below it: numbers over time
	"internal/plane/planekube":          "api/gateway/v1alpha1 api/v1alpha1 internal/access internal/gossip internal/gossip/gossipkube internal/fleet internal/fleet/arc internal/fleet/change internal/fleet/truth internal/inject internal/kube internal/plane internal/plane/planechange internal/plane/planefleet internal/plane/planejobs internal/problem internal/signin",
	"internal/plane/planekube/act":      "api/v1alpha1 internal/access internal/fleet internal/fleet/change internal/kube internal/plane internal/plane/planeenroll internal/plane/planefleet internal/plane/planekube internal/problem", // what people ask for, done in the cluster
	"internal/plane/planekube/election": "internal/kube",                                                                                                                                                                                 // which replica is the node
	"internal/plane/web":                "internal/access internal/door internal/plane internal/problem",
	"internal/health":                   "internal/access internal/audit internal/door internal/door/framing internal/gossip internal/gossip/gossiphttp internal/problem internal/signin",
	"internal/cli": "internal/cli/checkup internal/cli/directory internal/cli/fault internal/cli/kubeapi internal/cli/kubectl internal/cli/kubefile internal/cli/link " +
		"internal/cli/memory internal/cli/ownfile internal/cli/reach internal/cli/screen internal/cli/shellscript internal/cli/spelling " +
		"internal/cli/bearer internal/cli/subshell internal/cli/tokencache internal/audit internal/door internal/gossip internal/gossip/memberlist internal/plane internal/plane/planechange internal/plane/planeenroll internal/plane/planefleet internal/plane/planejobs internal/plane/planemcp internal/problem internal/signin",
	// below tka's commands: the way to a server, files, shells, the screen
	"internal/cli/bearer":      "",
	"internal/cli/checkup":     "internal/signin",
	"internal/cli/directory":   "internal/cli/fault internal/cli/reach internal/cli/screen internal/cli/spelling internal/gossip",
	"internal/cli/fault":       "internal/cli/screen internal/problem",
	"internal/cli/kubeapi":     "internal/signin",
	"internal/cli/kubectl":     "internal/cli/fault internal/cli/screen",
	"internal/cli/kubefile":    "internal/cli/ownfile internal/cli/yamltree",
	"internal/cli/link":        "internal/cli/fault internal/cli/reach internal/cli/screen internal/door internal/problem internal/signin internal/util/retry",
	"internal/cli/memory":      "internal/cli/fault internal/cli/ownfile internal/cli/reach internal/cli/screen internal/cli/spelling internal/cli/yamltree internal/door",
	"internal/cli/ownfile":     "internal/util/retry",
	"internal/cli/reach":       "internal/cli/screen internal/signin",
	"internal/cli/screen":      "internal/cli/yamltree",
	"internal/cli/shellscript": "",
	"internal/cli/spelling":    "",
	"internal/cli/subshell":    "internal/cli/ownfile",
	"internal/cli/tokencache":  "internal/cli/ownfile internal/cli/reach internal/signin internal/util/retry",
	"internal/cli/yamltree":    "",

	// tests and the testbed only
	"testkit/apitest":           "",
	"testkit/audittest":         "internal/audit",
	"testkit/buildcache":        "internal/util/retry",
	"testkit/arctest":           "testkit/kubetest internal/util/retry",
	"testkit/forgetest":         "testkit/forgetest/appjwt testkit/forgetest/history",
	"testkit/forgetest/appjwt":  "", // what an App says of itself
	"testkit/forgetest/history": "", // what git keeps
	"testkit/gossiptest":        "",
	"testkit/kubetest":          "testkit/buildcache internal/util/retry",
	"testkit/planekubetest":     "api/gateway/v1alpha1 api/v1alpha1 internal/access internal/kube testkit/kubetest",
	"testkit/tailnettest": "testkit/tailnettest/acmetest testkit/tailnettest/tsapi " +
		"testkit/tailnettest/tailpolicy",
	"testkit/tailnettest/acmetest":   "",
	"testkit/tailnettest/tsapi":      "testkit/tailnettest/tailpolicy",
	"testkit/tailnettest/tailpolicy": "",
	"testkit/testenv":                "testkit/buildcache internal/door testkit/kubetest testkit/tailnettest internal/util/retry",

	"cmd/mca": "internal/apiproxy internal/apiproxy/document internal/apiproxy/fanout internal/apiproxy/observe internal/apiproxy/observe/adminport internal/apiproxy/observe/record internal/apiproxy/podface internal/apiproxy/roster internal/apiproxy/serving internal/apiproxy/upstream internal/inject",
	"cmd/tka": "internal/cli",
	"cmd/tailplaned": "api/v1alpha1 internal/access internal/apiproxy internal/audit internal/audit/auditotlp internal/door internal/fleet internal/fleet/fleetkube internal/fleet/fleetkube/board internal/fleet/isolation internal/gossip internal/gossip/endpoint internal/gossip/gossiphttp internal/gossip/gossipkube internal/gossip/memberlist internal/gateway internal/gateway/gatewaykube internal/gateway/gatewaykube/attachments internal/gateway/gatewaykube/extensiontls internal/gateway/gatewaykube/gather internal/gateway/gatewayxds internal/gateway/workload internal/health internal/identity internal/inject internal/inject/injectkube internal/kube internal/plane internal/plane/expose internal/plane/planechange internal/plane/planedrift internal/plane/planeenroll internal/plane/planegit internal/plane/planefleet internal/plane/planejobs internal/plane/planekube internal/plane/planekube/act internal/plane/planekube/election internal/fleet/canary internal/fleet/change internal/fleet/stack internal/plane/planemcp internal/plane/planemetrics internal/plane/web internal/problem internal/profile internal/relay internal/relay/document internal/relay/relaykube internal/settings " +
		"internal/signin internal/signin/signinkube internal/tailnet internal/tailnet/tailnets internal/util/retry internal/util/broadcast",
}

// benches are the rooms that only tests and the testbed may import.
var benches = []string{"testkit/apitest", "testkit/audittest", "testkit/buildcache", "internal/door/openapi", "testkit/arctest", "testkit/forgetest", "testkit/forgetest/appjwt", "testkit/forgetest/history", "testkit/gossiptest", "testkit/kubetest", "testkit/planekubetest", "testkit/tailnettest",
	"testkit/tailnettest/acmetest", "testkit/tailnettest/tsapi", "testkit/tailnettest/tailpolicy",
	"testkit/testenv"}

// worlds lists each outside world and the only rooms that may speak to it.
var worlds = map[string]string{
	"tailscale.com/": "internal/tailnet internal/tailnet/tailnets testkit/tailnettest testkit/tailnettest/tsapi " +
		"testkit/tailnettest/tailpolicy testkit/testenv",
	"sigs.k8s.io/controller-runtime": "internal/fleet/fleetkube internal/fleet/fleetkube/adopt internal/fleet/fleetkube/arcworld internal/fleet/fleetkube/board internal/fleet/fleetkube/furnish internal/gateway/gatewaykube internal/gateway/gatewaykube/attachments internal/gateway/gatewaykube/extensiontls internal/gateway/gatewaykube/gather internal/gateway/gatewaykube/groups internal/gateway/gatewaykube/services internal/gossip/gossipkube internal/kube internal/plane/planekube internal/plane/planekube/act internal/plane/planekube/election testkit/planekubetest internal/signin/signinkube cmd/tailplaned",
	"k8s.io/client-go/":              "testkit/arctest internal/fleet/fleetkube internal/fleet/fleetkube/arcworld internal/fleet/fleetkube/board internal/gateway/gatewaykube internal/gateway/gatewaykube/gather internal/gateway/gatewaykube/groups internal/gateway/gatewaykube/services internal/gossip/gossipkube internal/inject/injectkube internal/kube testkit/kubetest internal/plane/planekube internal/plane/planekube/act internal/plane/planekube/election testkit/planekubetest internal/relay/relaykube internal/signin/signinkube cmd/tailplaned testkit/testenv",
	"k8s.io/":                        "api/gateway/v1alpha1 api/v1alpha1 internal/apiproxy internal/apiproxy/document internal/fleet internal/fleet/fleetkube internal/fleet/fleetkube/account internal/fleet/fleetkube/adopt internal/fleet/fleetkube/adopted internal/fleet/fleetkube/arcworld internal/fleet/fleetkube/board internal/fleet/fleetkube/findings internal/fleet/fleetkube/furnish internal/fleet/fleetkube/ledger internal/fleet/arc testkit/arctest internal/fleet/isolation internal/gateway internal/gateway/gatewaykube internal/gateway/gatewaykube/attachments internal/gateway/gatewaykube/extensiontls internal/gateway/gatewaykube/gather internal/gateway/gatewaykube/groups internal/gateway/gatewaykube/services internal/gateway/workload internal/gossip/gossipkube internal/inject/injectkube internal/kube testkit/kubetest internal/plane/planekube internal/plane/planekube/act internal/plane/planekube/election testkit/planekubetest internal/relay/relaykube internal/signin/signinkube cmd/tailplaned testkit/testenv",
	"sigs.k8s.io/gateway-api/":       "internal/gateway/gatewaykube/attachments internal/gateway/gatewaykube/gather internal/plane/planekube testkit/planekubetest",
	"github.com/envoyproxy/":         "internal/gateway/gatewayxds",
	"google.golang.org/grpc":         "internal/gateway/gatewayxds",
	"github.com/go-jose/":            "internal/identity",
	"github.com/prometheus/":         "internal/fleet/fleetkube/listeners internal/apiproxy/observe internal/apiproxy/observe/adminport internal/health cmd/tailplaned",
	"go.opentelemetry.io/":           "internal/apiproxy/observe internal/apiproxy/observe/otlpjson internal/audit/auditotlp",
	"github.com/spf13/cobra":         "internal/cli cmd/mca cmd/tka cmd/tailplaned",

	"github.com/google/go-github/":     "internal/fleet/forge",
	"github.com/hashicorp/hcl/":        "internal/manifest/tfvars",
	"github.com/google/jsonschema-go/": "internal/plane/planemcp",
	"github.com/modelcontextprotocol/": "internal/plane/planemcp",
	"gitlab.com/gitlab-org/":           "internal/fleet/forge",
}

// pure rooms import the standard library and the rooms of their plan, nothing else.
var pure = []string{"internal/util/broadcast", "internal/util/retry", "internal/fleet/forge/appkey", "internal/fleet/forge/exchange", "internal/fleet/forge/failure", "internal/fleet/forge/gitname", "internal/fleet/forge/place", "internal/fleet/forge/rate", "internal/fleet/forge/revision", "internal/fleet/forge/secret", "internal/fleet/forge/tree", "internal/authority", "internal/printable", "internal/profile", "internal/redact", "internal/problem", "internal/access", "internal/audit", "testkit/buildcache", "internal/gateway/portmap", "internal/gateway/standing", "internal/gateway/upkeep", "internal/door/framing", "internal/apiproxy/podface", "internal/apiproxy/observe/record", "internal/apiproxy/socket", "internal/apiproxy/observe/text"}

func TestPlan(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range list(t) {
		room, ours := strings.CutPrefix(p.ImportPath, module)
		if !ours {
			continue // the root, which holds only these tests
		}
		if len(p.GoFiles) == 0 {
			continue // tests only, such as test/e2e
		}
		seen[room] = true
		may, planned := plan[room]
		if !planned {
			t.Errorf("%s is not on the plan", room)
		}
		for _, imp := range p.Imports {
			if to, ok := strings.CutPrefix(imp, module); ok {
				if !slices.Contains(strings.Fields(may), to) {
					t.Errorf("%s may not import %s", room, to)
				}
				continue
			}
			for world, rooms := range worlds {
				if (imp == strings.TrimSuffix(world, "/") || strings.HasPrefix(imp, world)) && !slices.Contains(strings.Fields(rooms), room) {
					t.Errorf("%s may not import %s: only %s may", room, imp, rooms)
				}
			}
			if first, _, _ := strings.Cut(imp, "/"); strings.Contains(first, ".") && slices.Contains(pure, room) {
				t.Errorf("%s imports %s; it may import the standard library only", room, imp)
			}
		}
	}
	for room, may := range plan {
		if !seen[room] {
			t.Errorf("%s is on the plan but does not exist", room)
		}
		for to := range strings.FieldsSeq(may) {
			if slices.Contains(benches, to) && !slices.Contains(benches, room) {
				t.Errorf("%s may import %s, which is for tests and the testbed only", room, to)
			}
		}
	}
}

// TestPlanHasNoStaleLine keeps the plan as narrow as the house is.
func TestPlanHasNoStaleLine(t *testing.T) {
	imports := map[string][]string{}
	for _, p := range list(t) {
		imports[strings.TrimPrefix(p.ImportPath, module)] = p.Imports
	}
	for room, may := range plan {
		for to := range strings.FieldsSeq(may) {
			if imports[room] != nil && !slices.Contains(imports[room], module+to) {
				t.Errorf("%s may import %s but does not", room, to)
			}
		}
	}
}

// TestSmallPrograms keeps the worlds out of the programs that run with other people.
func TestSmallPrograms(t *testing.T) {
	for program, worlds := range map[string][]string{
		"tka": {"tailscale.com/", "k8s.io/", "sigs.k8s.io/controller-runtime", "google.golang.org/grpc"},
		"mca": {"tailscale.com/", "k8s.io/client-go", "k8s.io/api/", "k8s.io/apimachinery/pkg/apis/meta/v1", "sigs.k8s.io/controller-runtime", "google.golang.org/grpc"},
	} {
		out, err := exec.Command("go", "list", "-deps", "./cmd/"+program).Output()
		if err != nil {
			t.Fatal(err)
		}
		for dep := range strings.FieldsSeq(string(out)) {
			for _, heavy := range worlds {
				if strings.HasPrefix(dep, heavy) {
					t.Errorf("%s links %s", program, dep)
				}
			}
		}
	}
}

// TestNames keeps out the rooms where things go because nobody knows where they belong.
func TestNames(t *testing.T) {
	for _, p := range list(t) {
		switch path.Base(p.ImportPath) {
		case "base", "common", "core", "helper", "helpers", "interfaces", "misc", "models", "pkg", "shared", "types", "util", "utils":
			t.Errorf("%s: name a package for what it provides", p.ImportPath)
		}
		for _, f := range p.GoFiles {
			if f == "types.go" || f == "helpers.go" || f == "util.go" || f == "utils.go" {
				t.Errorf("%s/%s: name a file for its noun", p.ImportPath, f)
			}
		}
		if p.Doc == "" && len(p.GoFiles) > 0 {
			t.Errorf("%s: no package comment", p.ImportPath)
		}
	}
}

type pkg struct {
	ImportPath, Name, Doc string
	Imports, GoFiles      []string
}

func list(t *testing.T) (ps []pkg) {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Name,Doc,Imports,GoFiles", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return ps
		} else if err != nil {
			t.Fatal(err)
		}
		ps = append(ps, p)
	}
}
