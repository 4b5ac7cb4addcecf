-- Health of a NetworkPolicyStatus for Argo CD: key resource.customizations.health.netpold.io_NetworkPolicyStatus of the
-- ConfigMap argocd-cm (deploy/gitops/argocd-cm.yaml).
local states = {Ready = "", Reconciling = "", Stalled = ""}
local message = "waiting for netpold's controller"
local status = obj.status or {}
for _, condition in ipairs(status.conditions or {}) do
  if states[condition.type] then
    states[condition.type] = condition.status
  end
  if condition.type == "Ready" then
    message = condition.reason .. ": " .. condition.message
  end
end
if status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "waiting for netpold's controller"}
elseif states.Stalled == "True" then
  return {status = "Degraded", message = message}
elseif states.Ready == "True" then
  return {status = "Healthy", message = message}
end
return {status = "Progressing", message = message}
