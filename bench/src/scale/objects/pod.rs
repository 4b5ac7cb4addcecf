//! The larger parts of a pod object.

use serde_json::{Value, json};

use super::values::{TIME, address, digits, time};

/// Phases of a pod; each is a write of its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::scale) enum PodPhase {
    /// Created by its ReplicaSet.
    Created,
    /// Bound by the scheduler.
    Scheduled,
    /// Accepted by its kubelet.
    Starting,
    /// Running and ready.
    Running,
    /// Deletion requested.
    Terminating,
    /// Running, with a changed status.
    Changed,
}

/// A spec as from a Deployment's template with the API server's defaults.
pub(super) fn spec(pod: &str) -> Value {
    let toleration = |key: &str| json!({ "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 });
    let probe = |path: &str| {
        json!({
            "httpGet": { "path": path, "port": "http", "scheme": "HTTP" },
            "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3,
        })
    };
    let token = format!("kube-api-access-{}", &pod[pod.len() - 5..]);
    json!({
        "containers": [{
            "name": "web", "image": "registry.example.com/platform/web:1.42.0", "imagePullPolicy": "IfNotPresent",
            "args": ["--listen=:8080", "--log-format=json"],
            "ports": [
                { "name": "http", "containerPort": 8080, "protocol": "TCP" },
                { "name": "metrics", "containerPort": 9090, "protocol": "TCP" },
            ],
            "env": [
                { "name": "DATABASE_URL", "valueFrom": { "secretKeyRef": { "name": "database", "key": "url" } } },
                { "name": "POD_NAME", "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.name" } } },
                { "name": "LOG_LEVEL", "value": "info" },
            ],
            "resources": { "limits": { "memory": "512Mi" }, "requests": { "cpu": "100m", "memory": "256Mi" } },
            "livenessProbe": probe("/healthz"), "readinessProbe": probe("/ready"),
            "securityContext": {
                "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": { "drop": ["ALL"] },
            },
            "volumeMounts": [
                { "name": "config", "mountPath": "/etc/web" },
                { "name": token, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true },
            ],
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        }],
        "volumes": [
            { "name": "config", "configMap": { "name": "web", "defaultMode": 420 } },
            { "name": token, "projected": { "defaultMode": 420, "sources": [
                { "serviceAccountToken": { "expirationSeconds": 3607, "path": "token" } },
                { "configMap": { "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
                { "downwardAPI": { "items": [
                    { "path": "namespace", "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.namespace" } },
                ] } },
            ] } },
        ],
        "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "preemptionPolicy": "PreemptLowerPriority",
        "priority": 0, "restartPolicy": "Always", "schedulerName": "default-scheduler",
        "securityContext": { "runAsNonRoot": true, "runAsUser": 10001 },
        "serviceAccount": "web", "serviceAccountName": "web", "terminationGracePeriodSeconds": 30,
        "tolerations": [
            toleration("node.kubernetes.io/not-ready"), toleration("node.kubernetes.io/unreachable"),
        ],
    })
}

/// A status as reported by the kubelet.
pub(super) fn status(number: u32, phase: PodPhase) -> Value {
    let time = time(number);
    let image = digits(u64::from(number % 1000), 64);
    let container = digits(1 << 50 | u64::from(number), 64);
    let condition = |kind: &str, is: bool| {
        json!({
            "type": kind, "status": if is { "True" } else { "False" },
            "lastProbeTime": null, "lastTransitionTime": time,
        })
    };
    if phase == PodPhase::Created {
        return json!({ "phase": "Pending", "qosClass": "Burstable" });
    }
    if phase == PodPhase::Scheduled {
        return json!({
            "phase": "Pending", "qosClass": "Burstable", "conditions": [condition("PodScheduled", true)],
        });
    }
    let up = phase != PodPhase::Starting;
    let state = if up {
        json!({ "running": { "startedAt": time } })
    } else {
        json!({ "waiting": { "reason": "ContainerCreating" } })
    };
    let mut status = json!({
        "phase": if up { "Running" } else { "Pending" }, "qosClass": "Burstable", "startTime": time,
        "hostIP": "10.12.0.1",
        "conditions": [
            condition("Initialized", true), condition("Ready", up), condition("ContainersReady", up),
            condition("PodScheduled", true),
        ],
        "containerStatuses": [{
            "name": "web", "image": "registry.example.com/platform/web:1.42.0",
            "imageID": if up { format!("registry.example.com/platform/web@sha256:{image}") } else { String::new() },
            "containerID": if up { format!("containerd://{container}") } else { String::new() },
            "ready": up, "started": up, "restartCount": u32::from(phase == PodPhase::Changed), "state": state, "lastState": {},
        }],
    });
    if up {
        status["podIP"] = json!(address(number));
        status["podIPs"] = json!([{ "ip": address(number) }]);
    }
    status
}

/// Managed fields, of the controller and of the kubelet.
pub(super) fn managed_fields(phase: PodPhase) -> Value {
    let all = |names: &[&str]| -> Value {
        names
            .iter()
            .map(|name| ((*name).to_owned(), json!({})))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let container = all(&[
        ".",
        "f:args",
        "f:env",
        "f:image",
        "f:imagePullPolicy",
        "f:livenessProbe",
        "f:name",
        "f:ports",
        "f:readinessProbe",
        "f:resources",
        "f:securityContext",
        "f:terminationMessagePath",
        "f:terminationMessagePolicy",
        "f:volumeMounts",
    ]);
    let controller = json!({
        "apiVersion": "v1", "fieldsType": "FieldsV1", "manager": "kube-controller-manager",
        "operation": "Update", "time": TIME,
        "fieldsV1": {
            "f:metadata": {
                "f:annotations": all(&[".", "f:checksum/config", "f:prometheus.io/path", "f:prometheus.io/port", "f:prometheus.io/scrape"]),
                "f:generateName": {},
                "f:labels": all(&[
                    ".", "f:app.kubernetes.io/instance", "f:app.kubernetes.io/managed-by", "f:app.kubernetes.io/name",
                    "f:app.kubernetes.io/version", "f:pod-template-hash", "f:tier",
                ]),
                "f:ownerReferences": { "k:{\"uid\":\"5f3c9a1e-7b2d-4c6f-0000-000000000000\"}": {} },
            },
            "f:spec": {
                "f:containers": { "k:{\"name\":\"web\"}": container },
                "f:dnsPolicy": {}, "f:enableServiceLinks": {}, "f:restartPolicy": {}, "f:schedulerName": {},
                "f:securityContext": {}, "f:serviceAccount": {}, "f:serviceAccountName": {},
                "f:terminationGracePeriodSeconds": {}, "f:volumes": {},
            },
        },
    });
    if matches!(phase, PodPhase::Created | PodPhase::Scheduled) {
        return json!([controller]);
    }
    let condition = || all(&[".", "f:lastProbeTime", "f:lastTransitionTime", "f:status", "f:type"]);
    let kubelet = json!({
        "apiVersion": "v1", "fieldsType": "FieldsV1", "manager": "kubelet", "operation": "Update", "time": TIME,
        "subresource": "status",
        "fieldsV1": { "f:status": {
            "f:conditions": {
                "k:{\"type\":\"ContainersReady\"}": condition(), "k:{\"type\":\"Initialized\"}": condition(),
                "k:{\"type\":\"Ready\"}": condition(),
            },
            "f:containerStatuses": {}, "f:hostIP": {}, "f:phase": {}, "f:podIP": {},
            "f:podIPs": { ".": {}, "k:{\"ip\":\"10.64.0.1\"}": { ".": {}, "f:ip": {} } },
            "f:startTime": {},
        } },
    });
    json!([controller, kubelet])
}
