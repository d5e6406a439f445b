package isolation

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
)

// A Unit is one workload: one organisation's use of one pool.
type Unit struct {
	Enrollment *v1alpha1.RunnerEnrollment
	Forge      *v1alpha1.RunnerForge
	Pool       *v1alpha1.RunnerPool
	Use        v1alpha1.EnrolledPool

	Name     string // see [fleet.WorkloadName]
	Capacity fleet.Capacity

	// Credential is the name of the copy of the credential, for GitHub.
	Credential string
	// Token is the runner's, for GitLab.
	Token Token
	// Drained says that a hold of mode Drain or Stop has outlasted every job.
	Drained bool
	// ByHand says that GitLab cannot be told to pause the runner: without a share it has
	// no manager.
	ByHand bool
}

func (u Unit) check(s Settings, forge v1alpha1.ForgeType) (namespace string, err error) {
	apart, err := level(u.Enrollment)
	namespace = fleet.NamespaceOf(u.Enrollment, s.Shared)
	switch {
	case err != nil:
	case u.Forge.Spec.Type != forge:
		err = fmt.Errorf("the forge %q is not of type %s", u.Forge.Name, forge)
	case u.Pool.Spec.Forge != u.Forge.Name || u.Enrollment.Spec.Forge != u.Forge.Name || u.Use.Name != u.Pool.Name:
		err = errors.New("enrollment, pool and forge do not belong together")
	case u.Pool.Spec.Adopt != nil:
		err = errors.New("somebody else keeps it")
	case u.Pool.Spec.DedicatedTo != "" && u.Pool.Spec.DedicatedTo != u.Enrollment.Name:
		err = errors.New("it is dedicated to another organisation")
	case u.Name == "" || namespace == "":
		err = errors.New("it has no name or no namespace")
	case apart && len(s.ClusterCIDRs) == 0:
		err = ErrUnbounded
	case u.Capacity.Min < 0 || u.Capacity.Max < u.Capacity.Min:
		err = fmt.Errorf("%d to %d runners", u.Capacity.Min, u.Capacity.Max)
	}
	return namespace, err
}

// ScaleSetKind is ARC's kind.
var ScaleSetKind = metav1.TypeMeta{APIVersion: "actions.github.com/v1alpha1", Kind: "AutoscalingRunnerSet"}

var version = regexp.MustCompile(`^(\d+)\.(\d+)\.(\d+)$`)

// ErrARCVersion is the error for an ARC that is not one of those that are known: older
// ones take jobs that they do not run, and every one deletes scale sets that carry
// another version than its own.
var ErrARCVersion = errors.New("ARC has a version that is not supported: 0.13.1 to 0.14 are")

// Labels says whether an ARC of that version can give a scale set labels beside its
// name, and whether it is supported at all.
func Labels(arc string) (labels bool, err error) {
	m := version.FindStringSubmatch(arc)
	if m == nil {
		return false, ErrARCVersion
	}
	minor, _ := strconv.Atoi(m[2])
	patch, _ := strconv.Atoi(m[3])
	if m[1] != "0" || minor < 13 || minor == 13 && patch < 1 || minor > 14 {
		return false, ErrARCVersion
	}
	return minor >= 14, nil
}

// ScaleSet is the AutoscalingRunnerSet of a unit. Its minimum and maximum are always
// there: ARC takes a maximum that is left out for none at all.
func ScaleSet(s Settings, u Unit) (*unstructured.Unstructured, error) {
	namespace, err := u.check(s, v1alpha1.GitHub)
	if err != nil {
		return nil, fmt.Errorf("scale set %s: %w", u.Name, err)
	}
	labels, err := Labels(s.ARC.Version)
	if err != nil {
		return nil, fmt.Errorf("scale set %s: %w", u.Name, err)
	}
	if u.Credential == "" {
		return nil, fmt.Errorf("scale set %s: it has no credential", u.Name)
	}
	template, err := Template(u.Pool, v1alpha1.GitHub, s.Images)
	if err != nil {
		return nil, fmt.Errorf("scale set %s: pool %s: %w", u.Name, u.Pool.Name, err)
	}
	forOrg(template, u.Pool, u.Enrollment)
	pod, err := runtime.DefaultUnstructuredConverter.ToUnstructured(template)
	if err != nil {
		return nil, fmt.Errorf("scale set %s: template: %w", u.Name, err)
	}
	spec := map[string]any{
		"githubConfigUrl": u.Enrollment.Spec.ConfigURL, "githubConfigSecret": u.Credential, "runnerScaleSetName": u.Name,
		"minRunners": int64(u.Capacity.Min), "maxRunners": int64(u.Capacity.Max), "template": pod,
	}
	if labels {
		var all []any
		for _, l := range fleet.RunsOn(u.Pool, u.Enrollment.Name) {
			all = append(all, l)
		}
		spec["runnerScaleSetLabels"] = all
	}
	if group := fleet.RunnerGroup(u.Enrollment, u.Use); group != "" {
		spec["runnerGroup"] = group
	}
	if u.Forge.Spec.CABundle != "" {
		spec["githubServerTLS"] = map[string]any{"certificateFrom": map[string]any{"configMapKeyRef": map[string]any{"name": authorityName(u.Forge), "key": caKey}},
			"runnerMountPath": "/usr/local/share/ca-certificates/"}
	}
	m := meta(namespace, u.Name, u.Enrollment.Name, map[string]string{
		"app.kubernetes.io/version": s.ARC.Version, "app.kubernetes.io/part-of": "gha-rs", v1alpha1.PoolLabel: u.Pool.Name,
		"actions.github.com/scale-set-name": u.Name, "actions.github.com/scale-set-namespace": namespace})
	set := &unstructured.Unstructured{Object: map[string]any{"apiVersion": ScaleSetKind.APIVersion, "kind": ScaleSetKind.Kind, "spec": spec}}
	set.SetName(m.Name)
	set.SetNamespace(m.Namespace)
	set.SetLabels(m.Labels)
	return set, nil
}
