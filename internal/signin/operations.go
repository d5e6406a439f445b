package signin

import (
	"slices"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// Base is the base path of the sign-in API.
const Base = "/api/v1alpha1"

// The operations of the sign-in API. The server, the client and the API reference use these
// declarations.
var (
	Login = httpapi.Op[LoginRequest, Accepted]{
		Pattern: "POST " + Base + "/login", Verb: access.SigninLogin,
		Doc:       "Sign in, or extend the sign-in of this device.",
		Example:   LoginRequest{Role: "view", Period: httpapi.Duration(30 * time.Minute)},
		Responses: []Accepted{{exampleStatus(Pending)}},
		Refusals: slices.Concat(ungranted, []problem.Code{problem.AmbiguousRole, problem.RoleNotGranted, problem.RoleNotAllowed, problem.PeriodOutOfBounds,
			problem.MediaType, problem.TooLarge, problem.TooManySignins, problem.Conflict, problem.Ending, problem.AuditUnavailable}),
	}
	Read = httpapi.Op[ReadRequest, Status]{
		Pattern: "GET " + Base + "/login", Verb: access.SigninRead,
		Doc:       "Show the sign-in of this device: 200 when it is ready, 202 while it is pending.",
		Responses: []Status{exampleStatus(Ready), exampleStatus(Pending)},
		Refusals:  slices.Concat(ungranted, []problem.Code{problem.NotSignedIn, problem.CannotProvision}),
	}
	GetKubeconfig = httpapi.Op[KubeconfigRequest, Kubeconfig]{
		Pattern: "GET " + Base + "/kubeconfig", Verb: access.SigninKubeconfig,
		Doc:     "Return a kubeconfig with a fresh token. The server does not store the token. The request can wait until the sign-in is ready.",
		Example: KubeconfigRequest{Wait: httpapi.Duration(25 * time.Second)},
		Responses: []Kubeconfig{{Cluster: "prod-eu", Server: "https://k8s.prod-eu.example:6443", CA: []byte("-----BEGIN CERTIFICATE-----\n"), Prefix: "tka-",
			Token: secret.New("the token"), ExpiresAt: exampleTime.Add(8 * time.Hour)}},
		Refusals: slices.Concat(ungranted, []problem.Code{problem.NotReady, problem.NotSignedIn, problem.GrantRemoved, problem.CannotProvision, problem.AuditUnavailable}),
	}
	Logout = httpapi.Op[LogoutRequest, Status]{
		Pattern: "POST " + Base + "/logout", Verb: access.SigninLogout,
		Doc:       "End the sign-in of this device. A caller may always end its sign-in, also without a grant.",
		Example:   LogoutRequest{Wait: httpapi.Duration(2 * time.Second)},
		Responses: []Status{exampleStatus(Ended)},
		Refusals:  slices.Concat(ungranted, []problem.Code{problem.MediaType, problem.TooLarge, problem.NotSignedIn}),
	}
	GetClusterInfo = httpapi.Op[ClusterInfoRequest, ClusterInfo]{
		Pattern: "GET " + Base + "/cluster-info", Verb: access.ClusterInfo,
		Doc: "Return how people reach the cluster, and its identity.",
		Responses: []ClusterInfo{{ServerURL: "https://k8s.prod-eu.example:6443", CAData: []byte("-----BEGIN CERTIFICATE-----\n"), Labels: map[string]string{"env": "prod"},
			Name: "prod-eu", ID: "5e0c3f5a-6f0e-4f0c-9a63-1f4f6f6f2b11", CAHash: "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
			Key: httpapi.PublicKey{1}, Version: "v0.1.0"}},
		Refusals: ungranted,
	}
	GetWhoami = httpapi.Op[WhoamiRequest, Whoami]{
		Pattern: "GET " + Base + "/whoami", Verb: access.Whoami,
		Doc: "Show the caller's identity as the server sees it, and the server's decision. Available to every caller that the tailnet identifies, also without a grant.",
		Responses: []Whoami{{
			Caller: CallerIdentity{Login: "alice@example.com", Node: "alice-laptop.tail1234.ts.net", NodeID: "nVQ1kLDx7R11CNTRL", Tags: []string{}, Tailnet: "example.com", Via: access.ViaTailnet},
			Rules: []Rule{
				{Role: "view", Period: httpapi.Duration(8 * time.Hour), Priority: 1, Namespaces: []string{}, Chosen: true},
				{Role: "edit", Period: httpapi.Duration(time.Hour), Namespaces: []string{"shop"}},
			},
			Decision: Decision{Allowed: true, Message: `A login gives the role "view" for 8h in the whole cluster.`, Advice: []string{}},
			Signin:   new(exampleStatus(Ready)), AuditID: "01KAJ3D1VXB6E2N4Q8R0S5T7WY",
		}},
	}
)

// ungranted are the refusals of every operation that needs a grant.
var ungranted = []problem.Code{problem.ForeignNode, problem.TaggedNode, problem.NoCapability, problem.BadCapability}

// Operations returns the declarations of the sign-in API.
func Operations() []httpapi.Declaration {
	var all []httpapi.Declaration
	for _, rt := range new(Service).Routes() {
		all = append(all, rt.Declaration)
	}
	return all
}

var exampleTime = time.Date(2026, 11, 21, 11, 41, 8, 0, time.UTC)

func exampleStatus(s State) Status {
	return Status{Username: "alice@example.com", Role: "view", Until: exampleTime.Add(8 * time.Hour).Format(time.RFC3339), State: s, Provisioned: s == Ready,
		Name: "alice-example-com-0f3c9a1b2d4e5f607182", Device: "alice-laptop.tail1234.ts.net", Namespaces: []string{}, MissingNamespaces: []string{},
		Cluster: "prod-eu", StartedAt: exampleTime, retryAfter: time.Second}
}
