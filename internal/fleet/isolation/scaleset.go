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
	"github.com/tailplane/tailplane/internal/util/secret"
)

// A WorkloadSpec is one workload: one organisation's use of one pool.
type WorkloadSpec struct {
	Enrollment *v1alpha1.RunnerEnrollment
	Forge      *v1alpha1.RunnerForge
	Pool       *v1alpha1.RunnerPool
	Use        v1alpha1.EnrolledPool

	Name     string // see [fleet.WorkloadName]
	Capacity fleet.Capacity

	// Credential is the name of the copy of the credential, for GitHub.
	Credential string
	// Token is the runner's token, for GitLab.
	Token secret.Text
	// Drained says that a hold of mode Drain or Stop is in force and all jobs have ended.
	Drained bool
	// Manual says that the fleet cannot pause the runner at GitLab. Without capacity it therefore
	// gets no manager.
	Manual bool
}

func (u WorkloadSpec) validate(s Settings, forge v1alpha1.ForgeType) (namespace string, err error) {
	isolated, err := isIsolated(u.Enrollment)
	namespace = fleet.NamespaceOf(u.Enrollment, s.Shared)
	switch {
	case err != nil:
	case u.Forge.Spec.Type != forge:
		err = fmt.Errorf("the forge %q is not of type %s", u.Forge.Name, forge)
	case u.Pool.Spec.Forge != u.Forge.Name || u.Enrollment.Spec.Forge != u.Forge.Name || u.Use.Name != u.Pool.Name:
		err = errors.New("enrollment, pool and forge do not match")
	case u.Pool.Spec.Adopt != nil:
		err = errors.New("the fleet does not manage it")
	case u.Pool.Spec.DedicatedTo != "" && u.Pool.Spec.DedicatedTo != u.Enrollment.Name:
		err = errors.New("it is dedicated to another organisation")
	case u.Name == "" || namespace == "":
		err = errors.New("it has no name or no namespace")
	case isolated && len(s.ClusterCIDRs) == 0:
		err = ErrUnbounded
	case u.Capacity.Min < 0 || u.Capacity.Max < u.Capacity.Min:
		err = fmt.Errorf("%d to %d runners", u.Capacity.Min, u.Capacity.Max)
	}
	return namespace, err
}

// scaleSetType is ARC's kind.
var scaleSetType = metav1.TypeMeta{APIVersion: "actions.github.com/v1alpha1", Kind: "AutoscalingRunnerSet"}

var version = regexp.MustCompile(`^(\d+)\.(\d+)\.(\d+)$`)

// errARCVersion is the error for an unsupported version of ARC. Older versions take jobs that they
// do not run. Every version deletes scale sets with another version.
var errARCVersion = errors.New("the version of ARC is not supported: use 0.13.1 to 0.14")

// SupportsLabels reports whether an ARC of that version supports labels in addition to the name of a scale
// set. It returns an error if the version is not supported.
func SupportsLabels(arc string) (labels bool, err error) {
	m := version.FindStringSubmatch(arc)
	if m == nil {
		return false, errARCVersion
	}
	minor, _ := strconv.Atoi(m[2])
	patch, _ := strconv.Atoi(m[3])
	if m[1] != "0" || minor < 13 || minor == 13 && patch < 1 || minor > 14 {
		return false, errARCVersion
	}
	return minor >= 14, nil
}

// ScaleSet renders the AutoscalingRunnerSet of a unit. It always sets the minimum and the maximum,
// because ARC reads a missing maximum as unlimited.
func ScaleSet(s Settings, u WorkloadSpec) (*unstructured.Unstructured, error) {
	namespace, err := u.validate(s, v1alpha1.GitHub)
	if err != nil {
		return nil, fmt.Errorf("scale set %s: %w", u.Name, err)
	}
	labels, err := SupportsLabels(s.ARC.Version)
	if err != nil {
		return nil, fmt.Errorf("scale set %s: %w", u.Name, err)
	}
	if u.Credential == "" {
		return nil, fmt.Errorf("scale set %s: it has no credential", u.Name)
	}
	template, err := podTemplate(u.Pool, s.Images)
	if err != nil {
		return nil, fmt.Errorf("scale set %s: pool %s: %w", u.Name, u.Pool.Name, err)
	}
	applyOrg(template, u.Pool, u.Enrollment)
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
	if group := fleet.RunnerGroupName(u.Enrollment, u.Use); group != "" {
		spec["runnerGroup"] = group
	}
	if u.Forge.Spec.CABundle != "" {
		spec["githubServerTLS"] = map[string]any{
			"certificateFrom": map[string]any{"configMapKeyRef": map[string]any{"name": caBundleName(u.Forge), "key": caKey}},
			"runnerMountPath": "/usr/local/share/ca-certificates/",
		}
	}
	m := objectMeta(namespace, u.Name, u.Enrollment.Name, map[string]string{
		"app.kubernetes.io/version": s.ARC.Version, "app.kubernetes.io/part-of": "gha-rs", v1alpha1.PoolLabel: u.Pool.Name,
		"actions.github.com/scale-set-name": u.Name, "actions.github.com/scale-set-namespace": namespace})
	set := &unstructured.Unstructured{
		Object: map[string]any{"apiVersion": scaleSetType.APIVersion, "kind": scaleSetType.Kind, "spec": spec},
	}
	set.SetName(m.Name)
	set.SetNamespace(m.Namespace)
	set.SetLabels(m.Labels)
	return set, nil
}
