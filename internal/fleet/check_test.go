package fleet_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
)

func named(name string, minutes int) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(start.Add(time.Duration(minutes) * time.Minute))}
}

// validView returns a fleet that breaks no rule: two forges, shared and dedicated pools, an older and a
// younger organisation on GitHub, and a group on GitLab.
func validView() fleet.View {
	scaling := v1alpha1.PoolScaling{Max: 5, Budget: 20, Guarantee: 1}
	pool := func(name, forge string) v1alpha1.RunnerPool {
		return v1alpha1.RunnerPool{ObjectMeta: named(name, 0), Spec: v1alpha1.RunnerPoolSpec{Forge: forge, RunsOn: []string{"nix"}, Scaling: scaling, ContainerMode: v1alpha1.ModeDefault}}
	}
	enrollment := func(name string, minutes int, forge, url string, pools ...v1alpha1.EnrolledPool) v1alpha1.RunnerEnrollment {
		return v1alpha1.RunnerEnrollment{ObjectMeta: named(name, minutes), Spec: v1alpha1.RunnerEnrollmentSpec{Forge: forge, ConfigURL: url, Isolation: v1alpha1.IsolationNone,
			Pools: pools, Credentials: v1alpha1.EnrollmentCredentials{SecretName: name + "-app"}}}
	}
	shared := func(name string) v1alpha1.EnrolledPool {
		return v1alpha1.EnrolledPool{Name: name, Type: v1alpha1.UseShared}
	}
	gpu := pool("gpu", "github")
	gpu.Spec.DedicatedTo = "acme"
	return fleet.View{
		Forges: []v1alpha1.RunnerForge{{ObjectMeta: named("github", 0), Spec: v1alpha1.RunnerForgeSpec{Type: v1alpha1.GitHub, URL: "https://github.com"}},
			{ObjectMeta: named("gitlab", 0), Spec: v1alpha1.RunnerForgeSpec{Type: v1alpha1.GitLab, URL: "https://example.com/gitlab"}}},
		Pools: []v1alpha1.RunnerPool{pool("gh-nix", "github"), pool("gh-docker", "github"), gpu, pool("gl-nix", "gitlab")},
		Enrollments: []v1alpha1.RunnerEnrollment{
			enrollment("acme", 1, "github", "https://github.com/Acme", shared("gh-nix"), v1alpha1.EnrolledPool{Name: "gpu", Type: v1alpha1.UseDedicated},
				v1alpha1.EnrolledPool{Name: "gh-docker", Type: v1alpha1.UseOrgPlusUser, Repositories: []string{"acme/app"}}),
			enrollment("beta", 2, "github", "https://github.com/beta", shared("gh-nix")),
			enrollment("gamma", 3, "gitlab", "https://example.com/gitlab/teams/gamma", shared("gl-nix"))},
		Credentials: map[string]fleet.Credential{"acme": {Org: "acme", AppID: 1}, "beta": {Org: "beta", AppID: 2}, "gamma": {Org: "gamma"}},
		Rules:       fleet.Rules{CacheNamespaces: []string{"cache"}},
	}
}

// FLEET-01, FLEET-11: every cross-object rule refuses its case, and only the enrollment that breaks
// it.
func TestFLEET01_Check(t *testing.T) {
	if got := fleet.Check(validView()); len(got) != 0 {
		t.Fatalf("valid objects break %v", got)
	}
	type view = *fleet.View
	acme := func(v view) *v1alpha1.RunnerEnrollmentSpec { return &v.Enrollments[0].Spec }
	beta := func(v view) *v1alpha1.RunnerEnrollmentSpec { return &v.Enrollments[1].Spec }
	gamma := func(v view) *v1alpha1.RunnerEnrollmentSpec { return &v.Enrollments[2].Spec }
	tried := map[string]bool{}
	for _, c := range []struct {
		why  string
		do   func(view)
		want string // org/pool Reason effect, separated by commas
	}{
		{"a missing forge", func(v view) { beta(v).Forge = "none" }, "beta ForgeNotFound 1"},
		{"a missing pool", func(v view) { beta(v).Pools[0].Name = "none" }, "beta/none PoolNotFound 1"},
		{"a pool of another forge", func(v view) { beta(v).Pools[0].Name = "gl-nix" }, "beta/gl-nix ForgeMismatch 2"},
		{"a URL of another host", func(v view) { beta(v).ConfigURL = "https://example.com/beta" }, "beta ConfigURLInvalid 2"},
		{"a host that only begins like it", func(v view) { beta(v).ConfigURL = "https://github.com.example.com/beta" }, "beta ConfigURLInvalid 2"},
		{"another port", func(v view) { beta(v).ConfigURL = "https://github.com:8443/beta" }, "beta ConfigURLInvalid 2"},
		{"http", func(v view) { beta(v).ConfigURL = "http://github.com/beta" }, "beta ConfigURLInvalid 2"},
		{"the same port, explicit", func(v view) { beta(v).ConfigURL = "https://github.com:443/beta/" }, ""},
		{"outside the path of the forge", func(v view) { gamma(v).ConfigURL = "https://example.com/gitlabs/gamma" }, "gamma ConfigURLInvalid 2"},
		{"the forge itself", func(v view) { gamma(v).ConfigURL = "https://example.com/gitlab" }, "gamma ConfigURLInvalid 2"},
		{"out of the forge by dots", func(v view) { gamma(v).ConfigURL = "https://example.com/gitlab/../gamma" }, "gamma ConfigURLInvalid 2"},
		{"deeper than a repository", func(v view) { beta(v).ConfigURL = "https://github.com/a/b/c" }, "beta ConfigURLInvalid 2"},
		{"another's URL, spelt otherwise", func(v view) { beta(v).ConfigURL = "https://GitHub.com:443/aCME/" }, "beta ConfigURLTaken 2"},
		{"another's group", func(v view) {
			second := *v.Enrollments[2].DeepCopy()
			second.ObjectMeta, second.Spec.ConfigURL, second.Spec.GroupID = named("delta", 9), "https://example.com/gitlab/teams/delta", 7
			v.Enrollments = append(v.Enrollments, second)
			v.GroupIDs = map[string]int64{"gamma": 7}
		}, "delta GroupTaken 2"},
		{"another's pool", func(v view) {
			beta(v).Pools[0] = v1alpha1.EnrolledPool{Name: "gpu", Type: v1alpha1.UseDedicated}
		}, "beta/gpu PoolDedicated 2"},
		{"another's pool, as shared", func(v view) { beta(v).Pools[0].Name = "gpu" }, "beta/gpu PoolDedicated 2"},
		{"its own, as shared", func(v view) { acme(v).Pools[1].Type = v1alpha1.UseShared }, "acme/gpu PoolDedicated 1"},
		{"a shared pool, as dedicated", func(v view) { beta(v).Pools[0].Type = v1alpha1.UseDedicated }, "beta/gh-nix PoolNotDedicated 1"},
		{"a pool that is shown only", func(v view) { v.Pools[0].Spec.Adopt = &v1alpha1.PoolAdopt{Namespace: "a", Name: "b"} }, "acme/gh-nix PoolAdopted 1, beta/gh-nix PoolAdopted 1"},
		{"a template that cannot be", func(v view) { v.PoolFaults = map[string]string{"gpu": "it has a host path"} }, "acme/gpu PoolInvalid 1"},
		{"a use of a later version", func(v view) { beta(v).Pools[0].Type = "Rented" }, "beta/gh-nix TypeUnknown 1"},
		{"Docker for two", func(v view) { v.Pools[0].Spec.ContainerMode = v1alpha1.ModeDind }, "beta/gh-nix ContainerModeRefused 2"},
		{"Docker for one", func(v view) { v.Pools[2].Spec.ContainerMode = v1alpha1.ModeDind }, ""},
		{"Docker for two, apart", func(v view) {
			v.Pools[0].Spec.ContainerMode, beta(v).Isolation = v1alpha1.ModeDind, v1alpha1.IsolationNamespace
		}, ""},
		{"a reader of Secrets together with others", func(v view) {
			v.Pools[0].Spec.ContainerMode = v1alpha1.ModeKubernetes
			acme(v).Pools = acme(v).Pools[1:]
		}, "beta/gh-nix ContainerModeRefused 2"},
		{"the reader of Secrets was first", func(v view) { v.Pools[2].Spec.ContainerMode = v1alpha1.ModeKubernetesNoVolume },
			"beta/gh-nix ContainerModeRefused 2, gamma/gl-nix ContainerModeRefused 2"},
		{"a reader of Secrets, isolated", func(v view) {
			v.Pools[2].Spec.ContainerMode, acme(v).Isolation = v1alpha1.ModeKubernetes, v1alpha1.IsolationNode
		}, ""},
		{"a mode of GitHub's at GitLab", func(v view) { v.Pools[3].Spec.ContainerMode = v1alpha1.ModeKubernetes }, "gamma/gl-nix ContainerModeRefused 1"},
		{"more guarantees than budget", func(v view) {
			v.Pools[0].Spec.Scaling = v1alpha1.PoolScaling{Max: 5, Budget: 5, Guarantee: 3}
		}, "beta/gh-nix GuaranteesOverBudget 1"},
		{"a guarantee is at most the maximum", func(v view) {
			v.Pools[0].Spec.Scaling = v1alpha1.PoolScaling{Max: 5, Budget: 5, Guarantee: 3}
			beta(v).Pools[0].Max = new(int32(2))
		}, ""},
		{"repositories at GitLab", func(v view) {
			gamma(v).Pools[0] = v1alpha1.EnrolledPool{Name: "gl-nix", Type: v1alpha1.UseOrgPlusUser, Repositories: []string{"gamma/app"}}
		}, "gamma/gl-nix OrgPlusUserOnGitLab 1"},
		{"repositories of a repository", func(v view) { acme(v).ConfigURL = "https://github.com/acme/app" }, "acme/gh-docker OrgPlusUserNeedsOrg 2"},
		{"another's repository", func(v view) { acme(v).Pools[2].Repositories = []string{"ACME/app", "beta/app"} }, "acme/gh-docker RepositoryOfAnother 2"},
		{"a runner group at GitLab", func(v view) { gamma(v).Pools[0].RunnerGroup = "g" }, "gamma/gl-nix RunnerGroupOnGitLab 1"},
		{"another's Secret", func(v view) { v.Credentials["beta"] = fleet.Credential{Org: "acme"} }, "beta SecretOfAnother 2"},
		{"a Secret without an organisation", func(v view) { v.Credentials["beta"] = fleet.Credential{} }, "beta SecretOfAnother 2"},
		{"a missing Secret", func(v view) { delete(v.Credentials, "beta") }, ""},
		{"another namespace as cache", func(v view) {
			beta(v).Network = &v1alpha1.EnrollmentNetwork{Caches: []v1alpha1.NetworkCache{{Namespace: "cache"}, {Namespace: "tailplane-org-acme"}}}
		}, "beta CacheNamespace 2"},
		{"addresses of the tailnet", func(v view) {
			beta(v).Network = &v1alpha1.EnrollmentNetwork{Egress: []v1alpha1.NetworkEgress{{CIDR: "0.0.0.0/0"}, {CIDR: "100.100.0.0/16"}, {CIDR: "198.51.100.0/24"}}}
		}, "beta EgressPrivate 1"},
		{"addresses of the cluster", func(v view) {
			v.Rules.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
			beta(v).Network = &v1alpha1.EnrollmentNetwork{Egress: []v1alpha1.NetworkEgress{{CIDR: "198.51.0.0/16"}, {CIDR: "198.51.100.7/32"}}}
		}, "beta EgressPrivate 1"},
		{"no addresses", func(v view) {
			beta(v).Network = &v1alpha1.EnrollmentNetwork{Egress: []v1alpha1.NetworkEgress{{CIDR: "somewhere"}}}
		}, "beta EgressPrivate 1"},
		{"another's nodes", func(v view) {
			beta(v).Placement = &v1alpha1.EnrollmentPlacement{NodeSelector: map[string]string{v1alpha1.OrgLabel: "acme"}}
		}, "beta PlacementOfAnother 2"},
		{"another's taint", func(v view) {
			beta(v).Placement = &v1alpha1.EnrollmentPlacement{Tolerations: []corev1.Toleration{{Key: v1alpha1.OrgLabel, Value: "acme"}}}
		}, "beta PlacementOfAnother 2"},
		{"a shared taint", func(v view) {
			beta(v).Placement = &v1alpha1.EnrollmentPlacement{Tolerations: []corev1.Toleration{{Key: v1alpha1.OrgLabel, Operator: corev1.TolerationOpExists, Value: "beta"}}}
		}, "beta PlacementOfAnother 2"},
		{"any taint", func(v view) {
			beta(v).Placement = &v1alpha1.EnrollmentPlacement{Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}
		}, "beta PlacementOfAnother 2"},
		{"its own nodes", func(v view) {
			beta(v).Placement = &v1alpha1.EnrollmentPlacement{NodeSelector: map[string]string{v1alpha1.OrgLabel: "beta"}, Tolerations: []corev1.Toleration{{Key: v1alpha1.OrgLabel, Value: "beta"}, {Key: "gpu", Operator: corev1.TolerationOpExists}}}
		}, ""},
		{"a name that two workloads would have", func(v view) {
			v.Enrollments[1].Name, v.Credentials["acme-gh"] = "acme-gh", fleet.Credential{Org: "acme-gh"}
			nix := *v.Pools[0].DeepCopy()
			nix.Name = "nix"
			v.Pools = append(v.Pools, nix)
			v.Enrollments[1].Spec.Pools[0].Name = "nix"
		}, "acme-gh/nix NameTaken 1"},
		{"an App for two that are apart", func(v view) {
			v.Credentials["beta"] = fleet.Credential{Org: "beta", AppID: 1}
			beta(v).Isolation = v1alpha1.IsolationNode
		}, "beta SharedApp 0"},
		{"an App for two that are apart, refused", func(v view) {
			v.Credentials["beta"] = fleet.Credential{Org: "beta", AppID: 1}
			beta(v).Isolation, v.Rules.RequireOwnApp = v1alpha1.IsolationNamespace, true
		}, "beta SharedApp 1"},
		{"an App for two that are not", func(v view) {
			v.Credentials["beta"] = fleet.Credential{Org: "beta", AppID: 1}
			v.Rules.RequireOwnApp = true
		}, ""},
	} {
		t.Run(c.why, func(t *testing.T) {
			v := validView()
			c.do(&v)
			before, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for org, violations := range fleet.Check(v) {
				for _, x := range violations {
					if x.Message == "" || strings.Contains(x.Message, "%!") {
						t.Errorf("%s: %q", x.Reason, x.Message)
					}
					tried[x.Reason] = true
					if x.Pool != "" {
						org += "/" + x.Pool
					}
					got = append(got, fmt.Sprint(org, " ", x.Reason, " ", int(x.Effect)))
					org, _, _ = strings.Cut(org, "/")
				}
			}
			want := slices.DeleteFunc(strings.Split(c.want, ", "), func(s string) bool { return s == "" })
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
			if after, err := json.Marshal(v); err != nil || string(after) != string(before) {
				t.Errorf("Check changed its input (%v)", err)
			}
			// The result depends on the age, not on the order of the list.
			slices.Reverse(v.Enrollments)
			again := 0
			for _, violations := range fleet.Check(v) {
				again += len(violations)
			}
			if again != len(got) {
				t.Errorf("in another order there are %d violations, not %d", again, len(got))
			}
		})
	}
	if len(tried) < 22 {
		t.Errorf("%d reasons occurred: %v", len(tried), tried)
	}
}

// Names are sufficiently unique: Check finds workloads with the same name. A name is never too long
// and never ends in a character that Kubernetes refuses. A new revision gets a free name.
func TestNames(t *testing.T) {
	for _, c := range []struct {
		org, pool string
		revision  int
		want      string
	}{
		{"acme", "gh-nix", 1, "acme-gh-nix"},
		{"acme", "gh-nix", 2, "acme-gh-nix-r2"},
		{strings.Repeat("a", 22), strings.Repeat("b", 22), 1, strings.Repeat("a", 22) + "-" + strings.Repeat("b", 22)},
		{strings.Repeat("a", 23), strings.Repeat("b", 22), 1, strings.Repeat("a", 23) + "-" + strings.Repeat("b", 12) + "-1359b14f"},
		{strings.Repeat("a", 36), "b", 2, strings.Repeat("a", 36) + "-b-r2"},
		{strings.Repeat("a", 35) + "b", strings.Repeat("c", 22), 1, ""},
	} {
		got := fleet.WorkloadName(c.org, c.pool, c.revision)
		switch {
		case c.want != "" && got != c.want:
			t.Errorf(`c.want != "" && got != c.want; %s, %s, %d, got = %q, %q`, c.org, c.pool, c.revision, got, c.want)
		case len(got) > 45:
			t.Errorf("len(got) = %v, want at most 45; %s; %s", len(got), c.org, c.pool)
		case strings.Contains(got, "--"):
			t.Errorf("got = %q contains %q; %s; %s", got, "--", c.org, c.pool)
		}
	}
	if a, b := fleet.WorkloadName(strings.Repeat("a", 40), "b-c", 1), fleet.WorkloadName(strings.Repeat("a", 40), "b-d", 1); a == b {
		t.Errorf("two pools have the name %q", a)
	}
	if name, revision := fleet.NextWorkloadName("acme", "gh", 1, []string{"acme-gh", "acme-gh-r2"}); name != "acme-gh-r3" || revision != 3 {
		t.Errorf("the next is %s, %d", name, revision)
	}
	one := map[string][]byte{"a": []byte("bc"), "d": []byte("e")}
	switch x, y := fleet.Fingerprint(one), fleet.Fingerprint(map[string][]byte{"ab": []byte("c"), "d": []byte("e")}); {
	case x == y:
		t.Errorf("fingerprints: x = %q, the same as y", x)
	case len(x) != 16:
		t.Errorf("fingerprints: len(x) = %v, want 16", len(x))
	case fleet.Fingerprint(one) != x:
		t.Errorf("fingerprints: fleet.Fingerprint(one) != x; %s, %s", x, y)
	}
	if got := fleet.CredentialName("acme", fleet.Fingerprint(one)); len(got) != len("acme-")+8 {
		t.Errorf("credential %q", got)
	}
}

// PL-06: an approval counts only if it is by a platform-admin outside the organisation, for the
// current content of the enrollment.
func TestApproved(t *testing.T) {
	e := &validView().Enrollments[0]
	e.Spec.Owners, e.Spec.Members = []string{"amy@acme.dev"}, []string{"*@acme.dev", "zoe@example.com"}
	admins := func(login string) bool { return slices.Contains([]string{"pat@platform.dev", "amy@acme.dev"}, login) }
	is := func(why string, byPlane bool, want fleet.Answer, reason string) {
		t.Helper()
		switch got := fleet.Approved(e, byPlane, admins); {
		case got.Status != want:
			t.Errorf("%s: got.Status = %v, want %v", why, got.Status, want)
		case got.Reason != reason:
			t.Errorf("%s: got.Reason = %q, want %q", why, got.Reason, reason)
		case got.Type != "Approved":
			t.Errorf("%s: got.Type = %q, want %q", why, got.Type, "Approved")
		}
	}
	is("by git", false, fleet.Yes, fleet.ReasonMerged)
	is("without an approver", true, fleet.No, fleet.ReasonNotApproved)
	e.Spec.Approval = &v1alpha1.EnrollmentApproval{By: "pat@platform.dev", Digest: fleet.Digest(e)}
	is("by an admin", true, fleet.Yes, fleet.ReasonApproved)
	e.Spec.Approval.By = "mallory@platform.dev"
	is("by no admin", true, fleet.No, fleet.ReasonApproverIsNoOne)
	e.Spec.Approval.By = "amy@acme.dev"
	is("by an owner", true, fleet.No, fleet.ReasonApproverIsOwn)
	e.Spec.Owners = nil
	is("by a member", true, fleet.No, fleet.ReasonApproverIsOwn)
	e.Spec.Approval.By = "pat@platform.dev"
	is("its members may change", true, fleet.Yes, fleet.ReasonApproved)
	e.Spec.Members = append(e.Spec.Members, "PAT@platform.dev")
	is("the approver has joined", true, fleet.No, fleet.ReasonApproverIsOwn)
	e.Spec.Members = nil

	// Any other change voids it.
	for why, change := range map[string]func(*v1alpha1.RunnerEnrollment){
		"isolation":    func(e *v1alpha1.RunnerEnrollment) { e.Spec.Isolation = v1alpha1.IsolationNode },
		"pools":        func(e *v1alpha1.RunnerEnrollment) { e.Spec.Pools[0].Max = new(int32(9)) },
		"repositories": func(e *v1alpha1.RunnerEnrollment) { e.Spec.Pools[2].Repositories = []string{"acme/other"} },
		"secret":       func(e *v1alpha1.RunnerEnrollment) { e.Spec.Credentials.SecretName = "other" },
		"network":      func(e *v1alpha1.RunnerEnrollment) { e.Spec.Network = &v1alpha1.EnrollmentNetwork{} },
		"timeout":      func(e *v1alpha1.RunnerEnrollment) { e.Spec.OffboardTimeout.Duration = time.Hour },
		"name":         func(e *v1alpha1.RunnerEnrollment) { e.Name = "other" },
	} {
		changed := e.DeepCopy()
		change(changed)
		if got := fleet.Approved(changed, true, admins); got.Status != fleet.No || got.Reason != fleet.ReasonApprovalVoid {
			t.Errorf("%s changed: %+v", why, got)
		}
	}
	is("and back", true, fleet.Yes, fleet.ReasonApproved)
}

// FLEET-20, the decision: Check of 500 pools and 20 organisations that use all of them.
func BenchmarkCheck(b *testing.B) {
	v := validView()
	one, pool := v.Enrollments[1], v.Pools[0]
	v.Pools, v.Enrollments = nil, nil
	one.Spec.Pools = nil
	for i := range 500 {
		pool.Name = fmt.Sprintf("pool-%03d", i)
		v.Pools = append(v.Pools, *pool.DeepCopy())
		one.Spec.Pools = append(one.Spec.Pools, v1alpha1.EnrolledPool{Name: pool.Name, Type: v1alpha1.UseShared})
	}
	for i := range 20 {
		one.Name, one.Spec.ConfigURL = fmt.Sprintf("org-%02d", i), fmt.Sprintf("https://github.com/org-%02d", i)
		v.Enrollments = append(v.Enrollments, *one.DeepCopy())
	}
	for b.Loop() {
		if got := fleet.Check(v); len(got) > 0 {
			b.Fatal(got)
		}
	}
}
