"""Dagster components for projects of `dg`. The attributes of a component declare a table or a raw log.

A component has the same fields as `tables/*.yaml` or `raw_logs/*.yaml`. A component creates the same definitions as a
file with the same fields. A component has no file for jobs to read. The jobs of a component therefore receive the
declaration itself (`declaration_file.text_of`, docs/architecture/orchestration.md).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from dagster import Component, ComponentLoadContext, Definitions
from dagster.components import ComponentTypeSpec
from pydantic import BaseModel, GetJsonSchemaHandler, RootModel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from assets.checks import build_table_checks
from assets.launcher import LAUNCHER, PipesLauncher
from assets.metadata import Project
from assets.run_tags import identifier
from pipelines.alerts.sensors import build_alerts
from pipelines.automation import Automation
from pipelines.catalog import build_assets, build_once
from pipelines.declaration_schema import with_templates
from pipelines.housekeeping import build_raw_log_assets
from pipelines.tables import DeclaredRawLog, DeclaredTable, DeclaredTables
from storage_core.base.errors import InvalidInput
from storage_core.base.text import repeated
from storage_core.change.declaration import RawLogDeclaration, TableDeclaration
from storage_core.change.declaration_file import load_text, read_automation, text_of
from storage_core.change.declaration_parts import Closed
from storage_core.data.steps import RawLogOptions

if TYPE_CHECKING:
    from dagster.components.core.component_tree import ComponentTree

PREFIX = "tidemark_"
"""The prefix for names of jobs, schedules and sensors. A project can therefore have its own job `ingest`."""

_TEMPLATES = ("{{", "{%")
_MAKES = ("asset", "asset_check", "job", "schedule", "sensor")


class TableAttributes(RootModel[dict[str, Any]]):
    """The fields of `tables/*.yaml`. The component checks the values."""

    @classmethod
    def __get_pydantic_json_schema__(cls, _: CoreSchema, __: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the JSON schema of the declaration. With this schema, editors complete and check a `defs.yaml`."""
        return with_templates(TableDeclaration.model_json_schema())


class RawLogAttributes(RootModel[dict[str, Any]]):
    """The fields of `raw_logs/*.yaml`. The component checks the values."""

    @classmethod
    def __get_pydantic_json_schema__(cls, _: CoreSchema, __: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the JSON schema of the declaration. With this schema, editors complete and check a `defs.yaml`."""
        return with_templates(RawLogDeclaration.model_json_schema())


Declared = TypeVar("Declared", TableDeclaration, RawLogDeclaration)


class _Declaring(Component, Generic[Declared]):
    """A component with a declaration. Raises `InvalidInput` with one line per problem. Each line contains the field."""

    attributes: ClassVar[type[RootModel[dict[str, Any]]]]
    model: ClassVar[type[Closed]]

    declaration: Declared

    def __init__(self, **fields: object) -> None:
        self.text = text_of(fields)
        self.declaration = load_text(self.model, self.text, type(self).__name__)  # type: ignore[assignment]  # of the class

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """Return the model that Dagster uses to read the attributes of a `defs.yaml`."""
        return cls.attributes

    @classmethod
    def get_spec(cls) -> ComponentTypeSpec:
        """Return the description of the component that `dg` lists."""
        return ComponentTypeSpec(description=(cls.__doc__ or "").partition("\n")[0], produces=_MAKES)

    @classmethod
    def load(cls, attributes: BaseModel | None, context: ComponentLoadContext) -> Self:
        """Return the component with these attributes.

        Templates such as `{{ env.WAREHOUSE }}` are replaced by their values.
        """
        given = attributes.root if isinstance(attributes, RootModel) else {}
        return cls(**_filled_in(given, context))

    @abstractmethod
    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """Return the definitions of the declaration."""


class TableComponent(_Declaring[TableDeclaration]):
    """A Tidemark table with its assets, checks, jobs, schedules and sensors, as in `tables/*.yaml`."""

    attributes = TableAttributes
    model = TableDeclaration

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """Return the definitions of the table. Raw logs of the project can feed this table.

        Relative locations are relative to the project.
        """
        project = _project_of(context, self)
        return _once(project, self, _of_table(self, project, context.project_root), context.project_root)


class RawLogComponent(_Declaring[RawLogDeclaration]):
    """A raw log that feeds Tidemark tables, with its assets, as in `raw_logs/*.yaml`."""

    attributes = RawLogAttributes
    model = RawLogDeclaration

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """Return the definitions of the raw log.

        Raises `InvalidInput` if the project lacks a table that the raw log feeds.
        """
        project = _project_of(context, self)
        return _once(project, self, _of_raw_log(self, project.tables, context.project_root), context.project_root)


def component_definitions(*components: TableComponent | RawLogComponent, root: Path | None = None) -> Definitions:
    """Return the definitions of components that Python code creates, in a project without a `defs` folder.

    Relative locations start at `root`. The default is the working directory.
    """
    project = _Project(
        [each for each in components if isinstance(each, TableComponent)],
        [each for each in components if isinstance(each, RawLogComponent)],
    )
    where = (root or Path.cwd()).resolve()
    return Definitions.merge(
        *(_of_table(each, project, where) for each in project.tables),
        *(_of_raw_log(each, project.tables, where) for each in project.raw_logs),
        _shared(project, where),
    )


@dataclass(frozen=True, slots=True)
class _Project:
    """All components of a project. Raises `InvalidInput` if two tables have the same name or the same location."""

    tables: Sequence[TableComponent] = ()
    raw_logs: Sequence[RawLogComponent] = ()

    def __post_init__(self) -> None:
        _require_apart([each.declaration for each in self.tables])

    def automation(self, root: Path) -> Automation:
        """Return the switches of all tables and raw logs. Raises `InvalidInput` for an invalid `automation.yaml`."""
        raw_logs = [each.declaration for each in self.raw_logs]
        return Automation([each.declaration for each in self.tables], raw_logs, read_automation(root), PREFIX)


def _require_apart(declared: Sequence[TableDeclaration]) -> None:
    for what, values in (
        ("name", [identifier(each.name) for each in declared]),
        ("uri", [each.uri for each in declared]),
    ):
        if twice := repeated(values):
            raise InvalidInput(
                f"two TableComponents have the same {what} {twice[0]!r}. Give each table its own {what}."
            )


def _of_table(component: TableComponent, project: _Project, root: Path) -> Definitions:
    table = DeclaredTable(component.declaration.below(root))
    feeding = [_declared(each, (), root) for each in project.raw_logs]
    automated = project.automation(root).of(table.declaration)
    return Definitions(
        resources={LAUNCHER: _launcher(root)},
        assets=build_assets(table, feeding, None, Project(automated=automated)),
        asset_checks=build_table_checks(table.declaration),
    )


def _of_raw_log(component: RawLogComponent, tables: Sequence[TableComponent], root: Path) -> Definitions:
    raw, known = component.declaration, [each.declaration.name for each in tables]
    unknown = [name for name in raw.tables if name not in known]
    if unknown or not known:
        raise InvalidInput(
            f"raw log {raw.name!r}: no TableComponent declares {', '.join(unknown) or 'a table'}. Add the table to "
            "the project. In Python, give the raw log and its tables to component_definitions."
        )
    declared = _declared(component, tables, root)
    return Definitions(resources={LAUNCHER: _launcher(root)}, assets=build_raw_log_assets(declared))


def _once(project: _Project, component: _Declaring[Any], own: Definitions, root: Path) -> Definitions:
    """Return the definitions of a component.

    The first component of a project also returns the definitions for all tables.
    """
    first = next(iter([*project.tables, *project.raw_logs]))
    is_first = type(first) is type(component) and first.declaration.name == component.declaration.name
    return Definitions.merge(own, _shared(project, root)) if is_first else own


def _shared(project: _Project, root: Path) -> Definitions:
    """Return the jobs, schedules and sensors of all components, including the sensors for alerts."""
    tables = [each.declaration.below(root) for each in project.tables]
    raw_logs = [_declared(each, project.tables, root) for each in project.raw_logs]
    automation = project.automation(root)
    alerts = build_alerts(DeclaredTables(root, tuple(map(DeclaredTable, tables))), automation, raw_logs)
    return Definitions.merge(build_once(tables, raw_logs, None, automation, root=root), alerts)


def _declared(component: RawLogComponent, tables: Sequence[TableComponent], root: Path) -> DeclaredRawLog:
    texts = tuple(each.text for each in tables)
    return DeclaredRawLog(component.declaration, RawLogOptions(raw_log=component.text, tables=texts, root=str(root)))


def _project_of(context: ComponentLoadContext, component: _Declaring[Any]) -> _Project:
    """Return the components of the project. Without a folder of components, return only this component."""
    tree = context.component_tree
    module: object = tree.defs_module  # for a component without a folder, the module is a placeholder
    if isinstance(module, ModuleType):
        return _read(tree, tree.state_tracker)
    if isinstance(component, TableComponent):
        return _Project([component])
    return _Project(raw_logs=[component] if isinstance(component, RawLogComponent) else [])


@lru_cache(maxsize=2)
def _read(tree: ComponentTree, _tracker: object) -> _Project:
    """Return the components of a folder.

    The result is cached, because finding the components takes as long as loading them.

    Two tree objects of the same folder always compare as equal. The key of the cache therefore also contains the state
    of the component tree.
    """
    return _Project(tree.get_all_components(of_type=TableComponent), tree.get_all_components(of_type=RawLogComponent))


@cache
def _launcher(root: Path) -> PipesLauncher:
    """Return the launcher of a project.

    All components of a project share the launcher, because Dagster merges their definitions.
    """
    return PipesLauncher(root)


def _filled_in(value: Any, context: ComponentLoadContext) -> Any:
    """Return the value after the replacement of its templates.

    Text without a template stays unchanged, because Dagster would convert some texts to numbers.
    """
    if isinstance(value, Mapping):
        return {name: _filled_in(each, context) for name, each in value.items()}
    if isinstance(value, list):
        return [_filled_in(each, context) for each in value]
    if isinstance(value, str) and any(each in value for each in _TEMPLATES):
        return context.resolution_context.resolve_value(value)
    return value
