package arc

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
)

// A Controller is an installed actions-runner-controller.
type Controller struct {
	Deployment fleet.Key // its listeners are in the same namespace
	// Version is the version of its program, such as 0.14.2. It is empty if there is none, or if
	// the label and the image disagree.
	Version        string
	ServiceAccount string // of its pods, in its namespace
	Watches        string // the only namespace that it watches; empty: all
	Eventual       bool   // update strategy eventual: it applies changes after all runners have ended

	// MetricsPath is the metrics path of its listeners, if they serve metrics.
	MetricsPath string

	// Ready says that a pod of this version is ready. Old lists the versions of running pods with
	// another version. Each version deletes the scale sets of the other.
	Ready bool
	Old   []string
}

// ARC returns the controller in the form that the renderers use.
func (c Controller) ARC() isolation.ARC {
	return isolation.ARC{Version: c.Version, Namespace: c.Deployment.Namespace, ServiceAccount: c.ServiceAccount}
}

// managerContainer is the container of ARC's program.
const managerContainer = "manager"

// Discover finds the controllers among the Deployments of ARC's namespace, sorted by name. pods are
// all pods there; Discover ignores pods of other programs.
func Discover(deployments []*appsv1.Deployment, pods []*corev1.Pod) []Controller {
	var all []Controller
	for _, d := range deployments {
		pod := &d.Spec.Template
		if pod.Labels["app.kubernetes.io/part-of"] != "gha-rs-controller" || d.DeletionTimestamp != nil {
			continue
		}
		c := Controller{
			Deployment:     fleet.Key{Namespace: d.Namespace, Name: d.Name},
			MetricsPath:    "/metrics",
			Version:        pod.Labels[versionLabel],
			ServiceAccount: cmp.Or(pod.Spec.ServiceAccountName, d.Labels["actions.github.com/controller-service-account-name"], "default"),
			Watches:        d.Labels["actions.github.com/controller-watch-single-namespace"],
		}
		for _, container := range pod.Spec.Containers {
			if container.Name != managerContainer && len(pod.Spec.Containers) > 1 {
				continue
			}
			if contradicts(c.Version, container) {
				c.Version = ""
			}
			for _, arg := range container.Args {
				c.Eventual = c.Eventual || arg == "--update-strategy=eventual"
				if ns, ok := strings.CutPrefix(arg, "--watch-single-namespace="); ok {
					c.Watches = ns // the argument takes precedence over the label
				}
				if path, ok := strings.CutPrefix(arg, "--listener-metrics-endpoint="); ok && strings.HasPrefix(path, "/") {
					c.MetricsPath = path
				}
			}
		}
		c.readDeployment(d, pods)
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b Controller) int { return a.Deployment.Compare(b.Deployment) })
	return all
}

// readDeployment reads the pods of a controller.
func (c *Controller) readDeployment(d *appsv1.Deployment, pods []*corev1.Pod) {
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil || selector.Empty() {
		return
	}
	want, _ := parseRelease(c.Version)
	for _, p := range pods {
		if p.Namespace != d.Namespace || !selector.Matches(labels.Set(p.Labels)) || p.Status.Phase == corev1.PodSucceeded ||
			p.Status.Phase == corev1.PodFailed {
			continue
		}
		switch has, ok := parseRelease(p.Labels[versionLabel]); {
		case !ok:
		case has != want:
			c.Old = append(c.Old, shortLine(p.Labels[versionLabel]))
		case slices.ContainsFunc(p.Status.Conditions, func(x corev1.PodCondition) bool { return x.Type == corev1.PodReady && x.Status == corev1.ConditionTrue }):
			c.Ready = true
		}
	}
	slices.Sort(c.Old)
	c.Old = slices.Compact(c.Old)
}

// contradicts reports whether an image has another release than the label. The program uses its own
// version, and deletes objects of another one.
func contradicts(label string, c corev1.Container) bool {
	image, _, _ := strings.Cut(c.Image, "@")
	_, tag, tagged := strings.Cut(image[strings.LastIndex(image, "/")+1:], ":")
	ofImage, ok := parseRelease(strings.TrimPrefix(tag, "v"))
	ofLabel, reported := parseRelease(label)
	return tagged && ok && reported && ofImage != ofLabel
}

// A release is the part of a version that ARC compares.
type release struct{ major, minor int }

var releaseForm = regexp.MustCompile(`^(\d{1,4})\.(\d{1,4})(\.\d+)?([-+].*)?$`)

func parseRelease(s string) (release, bool) {
	m := releaseForm.FindStringSubmatch(s)
	if m == nil {
		return release{}, false
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	return release{major, minor}, true
}

// Choose returns the controller for a namespace of runners. If it returns trouble, the fleet must
// not use a controller: it must create and change nothing.
func Choose(controllers []Controller, namespace string) (Controller, fleet.Failure) {
	watching := slices.DeleteFunc(slices.Clone(controllers), func(c Controller) bool { return c.Watches != "" && c.Watches != namespace })
	failure := func(reason, format string, args ...any) (Controller, fleet.Failure) {
		return Controller{}, fleet.Failure{Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	switch {
	case len(controllers) == 0:
		return failure(ReasonMissing, "There is no actions-runner-controller in the configured namespace.")
	case len(watching) == 0:
		return failure(
			ReasonWatchesOther,
			"The actions-runner-controller %s watches only the namespace %q, not %q.",
			controllers[0].Deployment.Name,
			controllers[0].Watches,
			namespace,
		)
	case len(watching) > 1:
		return failure(
			ReasonAmbiguous,
			"Several actions-runner-controllers watch the namespace %q: %s and %s.",
			namespace,
			watching[0].Deployment.Name,
			watching[1].Deployment.Name,
		)
	}
	c := watching[0]
	if c.Version == "" {
		return failure(
			ReasonVersionUnknown,
			"The version of the actions-runner-controller %s is unknown, or its image has a different version than its label %s.",
			c.Deployment.Name,
			versionLabel,
		)
	}
	if _, err := isolation.SupportsLabels(c.Version); err != nil {
		return failure(
			ReasonVersionUnsupported,
			"The actions-runner-controller %s has version %s: 0.13.1 to 0.14 are supported.",
			c.Deployment.Name,
			shortLine(c.Version),
		)
	}
	if len(c.Old) > 0 {
		return failure(
			ReasonUpgrading,
			"The actions-runner-controller %s is being upgraded to version %s, and its pod of version %s still runs. That pod would delete objects of the new version.",
			c.Deployment.Name,
			c.Version,
			c.Old[0],
		)
	}
	return c, fleet.Failure{}
}
