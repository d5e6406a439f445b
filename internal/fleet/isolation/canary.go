package isolation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// A CanarySettings checks whether the network enforces the policies.
type CanarySettings struct {
	Image   string   // image with tailplaned; "": no canary
	Targets []string // further addresses (host:port) that no job may reach
}

const (
	componentCanary = "canary"
	canaryPort      = 9094
)

// CanaryName returns the name of an organisation's canary.
func CanaryName(org string) string { return "tailplane-canary-" + org }

// CanaryLabels returns the labels of the pods of an organisation's canary. No other pods have them.
func CanaryLabels(org string) map[string]string {
	return map[string]string{
		v1alpha1.ManagedByLabel:      v1alpha1.ManagedBy,
		v1alpha1.OrgLabel:            org,
		componentLabel:               componentCanary,
		"app.kubernetes.io/instance": CanaryName(org),
	}
}

// canary renders a pod with the same node placement and policy labels as the organisation's jobs.
// It tries to reach forbidden addresses: the metadata service, the tailnet and the API server. Its
// forge must answer; otherwise the result proves nothing.
func (g *baseline) canary() *appsv1.Deployment {
	e := g.own.Enrollment
	never := []string{"169.254.169.254:80", "100.100.100.100:80"}
	for _, a := range g.APIServers {
		never = append(never, a.String())
	}
	args := []string{"canary", fmt.Sprintf("--listen=:%d", canaryPort)}
	for _, a := range slices.Concat(never, g.Canary.Targets) {
		args = append(args, "--never="+a)
	}
	if a := forgeAddress(g.own.Forge); a != "" {
		args = append(args, "--always="+a)
	}
	labels := CanaryLabels(e.Name)
	small := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi")}
	pod := corev1.PodSpec{ServiceAccountName: RunnerAccount, AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot:   new(true),
			RunAsUser:      new(int64(65532)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{Name: "canary", Image: g.Canary.Image, Args: args,
			Ports: []corev1.ContainerPort{{Name: "ready", ContainerPort: canaryPort}},
			ReadinessProbe: &corev1.Probe{
				ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(canaryPort)}},
				PeriodSeconds: 5,
			},
			Resources: corev1.ResourceRequirements{
				Requests: small,
				Limits: corev1.ResourceList{
					corev1.ResourceCPU:    resource.MustParse("100m"),
					corev1.ResourceMemory: resource.MustParse("64Mi"),
				},
			},
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: new(false),
				ReadOnlyRootFilesystem:   new(true),
				Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			}}}}
	applyPlacement(&pod, e)
	return &appsv1.Deployment{
		TypeMeta:   typeMeta(appsv1.SchemeGroupVersion, "Deployment"),
		ObjectMeta: objectMeta(g.namespace, CanaryName(e.Name), e.Name, map[string]string{componentLabel: componentCanary}),
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(1)),
			Selector: new(labelSelector(labels)),
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
			Template: corev1.PodTemplateSpec{ObjectMeta: objectMeta("", "", e.Name, labels), Spec: pod},
		},
	}
}

// forgeAddress returns the address (host:port) of a forge for jobs.
func forgeAddress(f *v1alpha1.RunnerForge) string {
	u, err := url.Parse(f.Spec.URL)
	if err != nil || u.Hostname() == "" {
		return ""
	}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), map[string]string{"http": "80"}[u.Scheme], "443"))
}

// ConditionEnforced is the type of the condition that says whether the network enforces the policies.
const ConditionEnforced = "PolicyEnforced"

// maxReached is the maximum length of a canary's result in a message.
const maxReached = 200

// EnforcementCondition derives the condition from the pods of a canary. Without pods, the result is Unknown.
func EnforcementCondition(pods []corev1.Pod) fleet.Condition {
	for _, p := range pods {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil {
				return fleet.Condition{
					Type:    ConditionEnforced,
					Status:  fleet.Yes,
					Reason:  "Proved",
					Message: "A canary pod with the network rules of its jobs reaches its forge and no forbidden address.",
				}
			}
		}
	}
	for _, p := range pods {
		for _, c := range p.Status.ContainerStatuses {
			for _, s := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
				if s != nil && s.ExitCode == CanaryExitCode {
					reported := strings.Map(func(r rune) rune {
						if r < ' ' || r > '~' {
							return -1
						}
						return r
					}, s.Message)
					return fleet.Condition{Type: ConditionEnforced, Status: fleet.No, Reason: "Reached",
						Message: "The network does not enforce the policies. A canary pod with the network rules of its jobs " + reported[:min(len(reported), maxReached)] + ". Use a network plugin that enforces NetworkPolicies."}
				}
			}
		}
	}
	return fleet.Condition{
		Type:    ConditionEnforced,
		Status:  fleet.Unknown,
		Reason:  "NotProved",
		Message: "No canary pod has proved yet that the network enforces the policies.",
	}
}

// EnforcementUnknown returns the condition if no canary is configured.
func EnforcementUnknown() fleet.Condition {
	return fleet.Condition{
		Type:    ConditionEnforced,
		Status:  fleet.Unknown,
		Reason:  "NotProved",
		Message: "No canary checks whether the network enforces the policies (fleet.canary).",
	}
}

// Times of a canary.
const (
	canaryTimeout       = 3 * time.Second
	canarySettleTime    = 30 * time.Second // a plugin may apply a policy to a pod shortly after the pod starts
	canaryRetryInterval = time.Second      // between tries before settle has passed
)

// CanaryExitCode is the program's exit code if the canary reached a forbidden address.
const CanaryExitCode = 3

// A CanaryProbe makes the attempts. Only Never is required.
type CanaryProbe struct {
	Forbidden []string // addresses with ports that must not answer
	// Required lists addresses of which at least one must answer: a pod without any connection proves
	// nothing.
	Required []string
	Interval time.Duration // interval; 0: one minute

	// Dial, optional, opens a connection.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu       sync.Mutex
	enforced bool
}

// A CanaryReachedError lists the forbidden addresses that were reached.
type CanaryReachedError struct{ Addresses []string }

func (e *CanaryReachedError) Error() string { return "reached: " + strings.Join(e.Addresses, ", ") }

// Run makes attempts until ctx ends. It returns a *CanaryReachedError when it reaches a forbidden
// address.
func (c *CanaryProbe) Run(ctx context.Context) error {
	if len(c.Forbidden) == 0 {
		return errors.New("a canary needs at least one address that it must not reach")
	}
	startedAt := time.Now()
	for {
		reached := c.reachable(ctx, c.Forbidden)
		if ctx.Err() != nil {
			return nil
		}
		settled := time.Since(startedAt) >= canarySettleTime
		if len(reached) > 0 && settled {
			return &CanaryReachedError{reached}
		}
		works := len(c.Required) == 0 || len(c.reachable(ctx, c.Required)) > 0
		c.mu.Lock()
		c.enforced = len(reached) == 0 && works
		c.mu.Unlock()
		pause := canaryRetryInterval
		if settled || len(reached) == 0 && works {
			pause = cmp.Or(c.Interval, time.Minute)
		}
		if retry.Sleep(ctx, pause) != nil {
			return nil
		}
	}
}

// reachable returns the addresses that answer, in their order. A refused connection is an answer
// too: the packet arrived.
func (c *CanaryProbe) reachable(ctx context.Context, addresses []string) []string {
	dial := c.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	ctx, cancel := context.WithTimeout(ctx, canaryTimeout)
	defer cancel()
	answers := make([]bool, len(addresses))
	var wg sync.WaitGroup
	for i, address := range addresses {
		wg.Go(func() {
			conn, err := dial(ctx, "tcp", address)
			if err == nil {
				conn.Close()
			}
			answers[i] = err == nil || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET)
		})
	}
	wg.Wait()
	i := -1
	return slices.DeleteFunc(slices.Clone(addresses), func(string) bool { i++; return !answers[i] })
}

// ServeHTTP answers 200 if the last attempt proved that the policies work: it reached no forbidden
// address, and it reached an allowed one.
func (c *CanaryProbe) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.enforced {
		http.Error(w, "not proved", http.StatusServiceUnavailable)
	}
}
