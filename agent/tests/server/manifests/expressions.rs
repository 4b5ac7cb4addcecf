//! Expressions of admission policies, evaluated by a CEL interpreter as an API server would.

use std::collections::BTreeMap;
use std::sync::Arc;

use cel::common::types::{CelStruct, Type};
use cel::common::value::{CowVal, Val};
use cel::{Context, Env, ExecutionError, Program, StructType, Value as Cel};
use serde_json::{Value, json};

/// Spec of a `ValidatingAdmissionPolicy` or `MutatingAdmissionPolicy`.
pub(crate) struct Expressions {
    spec: Value,
}

impl Expressions {
    pub(crate) fn of(policy: &Value) -> Self {
        Self { spec: policy["spec"].clone() }
    }

    fn list(&self, name: &str) -> Vec<Value> {
        self.spec[name].as_array().cloned().unwrap_or_default()
    }

    /// Returns the variables of a request, with the policy's own; `None`: the policy does not match the request.
    fn context(&self, given: &[(&str, &Value)]) -> Option<Context<'static, 'static>> {
        let mut context = Context::with_env(Arc::new(environment()));
        for (name, value) in given {
            context.add_variable_from_value(*name, cel::to_value(value).unwrap());
        }
        let matches = |condition: &Value| evaluate(condition, &context) == Cel::Bool(true);
        if !self.list("matchConditions").iter().all(matches) {
            return None;
        }
        let mut variables = serde_json::Map::new();
        for variable in self.list("variables") {
            // Each variable may use the variables before it.
            context.add_variable_from_value("variables", cel::to_value(&variables).unwrap());
            let value = evaluate(&variable, &context).json().unwrap();
            variables.insert(variable["name"].as_str().unwrap().to_owned(), value);
        }
        context.add_variable_from_value("variables", cel::to_value(&variables).unwrap());
        Some(context)
    }

    /// Returns the messages of a validating policy about a request; empty if the request passes.
    pub(crate) fn refusals(&self, given: &[(&str, &Value)]) -> Vec<String> {
        let Some(context) = self.context(given) else { return Vec::new() };
        let broken = |validation: &Value| evaluate(validation, &context) != Cel::Bool(true);
        let message = |validation: Value| match validation["messageExpression"].as_str() {
            Some(expression) => {
                run(expression, &context).json().unwrap().as_str().unwrap().to_owned()
            }
            None => validation["message"].as_str().unwrap().to_owned(),
        };
        self.list("validations").into_iter().filter(broken).map(message).collect()
    }

    /// Returns a created object after a mutating policy.
    pub(crate) fn mutated(&self, object: &Value) -> Value {
        self.mutated_in(object, &Value::Null)
    }

    /// Returns a created object after a mutating policy, with the object's namespace.
    pub(crate) fn mutated_in(&self, object: &Value, namespace: &Value) -> Value {
        let mut object = object.clone();
        let none = Value::Null;
        let given = [("object", &object), ("oldObject", &none), ("namespaceObject", namespace)];
        let Some(context) = self.context(&given) else { return object };
        for mutation in self.list("mutations") {
            assert_eq!(mutation["patchType"], "JSONPatch");
            let expression = mutation["jsonPatch"]["expression"].as_str().unwrap();
            let fields = "{'op': patch.op, 'path': patch.path, 'value': patch.value}";
            let patches = run(&format!("({expression}).map(patch, {fields})"), &context);
            for patch in patches.json().unwrap().as_array().unwrap() {
                assert_eq!(patch["op"], "add");
                add(&mut object, patch["path"].as_str().unwrap(), &patch["value"]);
            }
        }
        object
    }
}

/// Returns the environment of an API server, with the type of a mutating policy's patches.
fn environment() -> Env {
    let mut environment = Env::stdlib();
    environment.add_type(JsonPatch(Type::new_struct("JSONPatch".to_owned()))).unwrap();
    environment
}

/// Type of `JSONPatch{op: …, path: …, value: …}`: its value has any type, which [`cel::StructDef`] does not support.
struct JsonPatch(Type);

impl StructType for JsonPatch {
    fn get_type(&self) -> &Type {
        &self.0
    }

    fn new_value<'v>(
        &self,
        fields: BTreeMap<String, CowVal<'_, 'v>>,
    ) -> Result<Box<dyn Val + 'v>, ExecutionError> {
        assert_eq!(fields.keys().collect::<Vec<_>>(), ["op", "path", "value"]);
        let mut patch = CelStruct::new("JSONPatch".to_owned());
        fields.into_iter().for_each(|(name, value)| patch.add_field_value(name, value));
        Ok(Box::new(patch))
    }
}

#[track_caller]
fn evaluate(holder: &Value, context: &Context<'_, '_>) -> Cel {
    run(holder["expression"].as_str().unwrap(), context)
}

#[track_caller]
fn run(expression: &str, context: &Context<'_, '_>) -> Cel {
    let program = Program::compile(expression);
    assert!(program.is_ok(), "{expression}: {:?}", program.err());
    let result = program.unwrap().execute(context);
    assert!(result.is_ok(), "{expression}: {:?}", result.err());
    result.unwrap()
}

/// Applies the operation `add` of RFC 6902, for fields and the ends of lists.
fn add(object: &mut Value, path: &str, value: &Value) {
    let (parent, last) = path.rsplit_once('/').unwrap();
    let parent = object.pointer_mut(parent).unwrap();
    if last == "-" {
        parent.as_array_mut().unwrap().push(value.clone());
    } else {
        let key = last.replace("~1", "/").replace("~0", "~");
        parent.as_object_mut().unwrap().insert(key, value.clone());
    }
}

#[test]
fn patches_are_applied() {
    let mut object = json!({ "spec": { "list": [1] } });
    add(&mut object, "/spec/list/-", &json!(2));
    add(&mut object, "/spec/new", &json!("x"));
    add(&mut object, "/spec/a~1b", &json!("y"));
    assert_eq!(object, json!({ "spec": { "list": [1, 2], "new": "x", "a/b": "y" } }));
}
